//! A model in GGUF: one file, or several that have numbers in their names.
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::error::{GgufError, PartFault};
use crate::header::{Header, Info};
use crate::part::Part;
use crate::types::Type;
use crate::value::Metadata;

/// An opened model. Its files must not change until all numbers are read: [`Gguf::check`] says
/// whether they did.
#[derive(Debug)]
pub struct Gguf {
    parts: Vec<Part>,
    metadata: Metadata,
    tensors: BTreeMap<String, (usize, Info)>,
}

/// The numbers of a tensor in a file.
#[derive(Clone, Copy, Debug)]
pub struct Stored<'a> {
    part: &'a Part,
    info: &'a Info,
}

impl Gguf {
    /// Opens a file, and all others of a model if it is one of several.
    pub fn open(path: impl AsRef<Path>) -> Result<Gguf, GgufError> {
        let path = path.as_ref();
        let (part, header) = Part::open(path.to_owned())?;
        let count = header.metadata.size("split.count")?.unwrap_or(1);
        let mut gguf = Gguf { parts: Vec::new(), metadata: Metadata::default(), tensors: BTreeMap::new() };
        if count <= 1 {
            gguf.add(part, header)?;
            return Ok(gguf);
        }
        let name = Numbered::of(path, count)?;
        for number in 1..=count {
            let (part, header) = Part::open(name.path(number))?;
            check_numbers(&part, &header.metadata, (number, count))?;
            gguf.add(part, header)?;
        }
        match gguf.metadata.size("split.tensors.count")? {
            Some(want) if want != gguf.tensors.len() as u64 => {
                let fault = PartFault::Tensors { found: gguf.tensors.len(), want };
                Err(GgufError::Part { path: name.path(1), fault })
            }
            _ => Ok(gguf),
        }
    }

    /// Adds the tensors of a file. The metadata are those of the first one.
    fn add(&mut self, part: Part, header: Header) -> Result<(), GgufError> {
        if self.parts.is_empty() {
            self.metadata = header.metadata;
        }
        for (name, info) in header.tensors {
            if let Some((other, _)) = self.tensors.get(&name) {
                let first = self.parts[*other].path().to_owned();
                return Err(GgufError::Twice { name, first, second: part.path().to_owned() });
            }
            self.tensors.insert(name, (self.parts.len(), info));
        }
        self.parts.push(part);
        Ok(())
    }

    /// What the model says of itself.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Whether there is a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// A tensor by its name.
    pub fn tensor(&self, name: &str) -> Result<Stored<'_>, GgufError> {
        let (part, info) = self.tensors.get(name).ok_or_else(|| GgufError::NoTensor { name: name.to_owned() })?;
        Ok(Stored { part: &self.parts[*part], info })
    }

    /// Gives a key another text.
    #[cfg(test)]
    pub(crate) fn set(&mut self, key: &str, text: &str) {
        self.metadata.0.insert(key.to_owned(), crate::value::Value::Text(text.to_owned()));
    }

    /// Fails if something else wrote to the files since they were opened.
    pub fn check(&self) -> Result<(), GgufError> {
        self.parts.iter().try_for_each(Part::check)
    }
}

impl<'a> Stored<'a> {
    /// The type of its elements.
    pub fn kind(self) -> Type {
        self.info.kind
    }

    /// Sizes of its dimensions, as safetensors have them: elements of a row last.
    pub fn shape(self) -> &'a [usize] {
        &self.info.shape
    }

    /// The number of its elements.
    pub fn elements(self) -> usize {
        self.info.shape.iter().product()
    }

    /// Bytes of the tensor.
    pub fn len(self) -> usize {
        self.info.bytes as usize
    }

    /// Whether the tensor has no numbers.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Reads bytes from the `at`th on.
    ///
    /// # Panics
    ///
    /// Panics if that is more than the tensor has.
    pub fn read(self, at: usize, out: &mut [u8]) -> Result<(), GgufError> {
        assert!(at.checked_add(out.len()).is_some_and(|end| end <= self.len()), "what is read lies in the tensor");
        self.part.read(self.info.start + at as u64, out)
    }

    /// Reads all bytes.
    pub fn to_vec(self) -> Result<Vec<u8>, GgufError> {
        let mut bytes = vec![0; self.len()];
        self.read(0, &mut bytes)?;
        Ok(bytes)
    }

    /// All elements as floats.
    pub fn floats(self) -> Result<Vec<f32>, GgufError> {
        self.floats_of(0..self.elements())
    }

    /// Some elements as floats, which are whole blocks.
    ///
    /// # Panics
    ///
    /// Panics if they are not, or if the tensor has fewer.
    pub fn floats_of(self, elements: Range<usize>) -> Result<Vec<f32>, GgufError> {
        let kind = self.kind();
        let bytes = |elements: usize| {
            assert!(elements.is_multiple_of(kind.block()), "blocks of {} are read whole", kind.name());
            elements / kind.block() * kind.block_bytes()
        };
        let mut stored = vec![0; bytes(elements.len())];
        self.read(bytes(elements.start), &mut stored)?;
        let mut floats = vec![0.0; elements.len()];
        kind.dequantise(&stored, &mut floats);
        Ok(floats)
    }
}

/// The name of one of several files, without its number.
struct Numbered {
    folder: PathBuf,
    prefix: String,
    count: u64,
}

impl Numbered {
    /// The names of all files of a model, by that of one.
    fn of(path: &Path, count: u64) -> Result<Numbered, GgufError> {
        let fault = |fault| GgufError::Part { path: path.to_owned(), fault };
        let name = path.file_name().and_then(|name| name.to_str());
        let parsed = name.and_then(|name| {
            let (rest, named) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
            let (prefix, number) = rest.rsplit_once('-')?;
            let digits = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
            (digits(number) && digits(named)).then(|| (prefix.to_owned(), named.parse::<u64>()))
        });
        let Some((prefix, Ok(named))) = parsed else { return Err(fault(PartFault::Name { count })) };
        if named != count {
            return Err(fault(PartFault::Files { named, found: count }));
        }
        Ok(Numbered { folder: path.parent().unwrap_or(Path::new("")).to_owned(), prefix, count })
    }

    fn path(&self, number: u64) -> PathBuf {
        let Numbered { folder, prefix, count } = self;
        folder.join(format!("{prefix}-{number:05}-of-{count:05}.gguf"))
    }
}

/// Checks that a file is the one that its name says.
fn check_numbers(part: &Part, metadata: &Metadata, (number, count): (u64, u64)) -> Result<(), GgufError> {
    let fault = |fault| Err(GgufError::Part { path: part.path().to_owned(), fault });
    let found = metadata.size("split.count")?.unwrap_or(1);
    if found != count {
        return fault(PartFault::Files { named: count, found });
    }
    match metadata.size("split.no")? {
        Some(found) if found != number - 1 => fault(PartFault::Number { named: number, found }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
