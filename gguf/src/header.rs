//! The header of a file: its metadata, and what tensors it has.
//!
//! Every length and count in it is held against the bytes that follow before room is made for it.
use std::collections::BTreeMap;
use std::io::Read;

use crate::error::Fault;
use crate::types::Type;
use crate::value::{Elements, List, Metadata, Scalar, Value};

/// The longest header that is read. Those with the largest vocabularies have some 30 MiB.
const MAX_HEADER: u64 = 256 << 20;
/// Most keys, and most tensors.
const MAX_COUNT: u64 = 1 << 20;
const MAX_DIMENSIONS: u32 = 4;
const DEFAULT_ALIGNMENT: u64 = 32;

const TEXT: u32 = 8;
const ARRAY: u32 = 9;

/// What a file says of itself.
#[derive(Debug)]
pub(crate) struct Header {
    pub metadata: Metadata,
    pub tensors: BTreeMap<String, Info>,
}

/// A tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Info {
    pub kind: Type,
    /// Sizes of the dimensions, the one of rows last.
    pub shape: Vec<usize>,
    /// Where it begins in the file.
    pub start: u64,
    pub bytes: u64,
}

/// Why reading stopped.
#[derive(Debug)]
pub(crate) enum Stop {
    Io(std::io::Error),
    Fault(Fault),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Stop {
        Stop::Fault(fault)
    }
}

impl Header {
    /// Reads the header of a file of this length.
    pub fn read(file: impl Read, len: u64) -> Result<Header, Stop> {
        let mut scan = Scan { file, at: 0, end: len.min(MAX_HEADER), len };
        version(&mut scan)?;
        let (tensors, keys) = (scan.word()?, scan.word()?);
        for (what, count) in [("tensors", tensors), ("keys", keys)] {
            if count > MAX_COUNT {
                return Err(Fault::Count { what, count }.into());
            }
        }
        let mut metadata = BTreeMap::new();
        for _ in 0..keys {
            let key = scan.text(|| "a key".to_owned())?;
            let value = value(&mut scan, &key)?;
            if metadata.contains_key(&key) {
                return Err(Fault::TwiceKey { key }.into());
            }
            metadata.insert(key, value);
        }
        let mut infos = Vec::new();
        for _ in 0..tensors {
            infos.push(info(&mut scan)?);
        }
        let alignment = alignment(metadata.get("general.alignment"))?;
        let start = scan.at.checked_next_multiple_of(alignment);
        let place = Place { start, alignment, len };
        let mut placed = BTreeMap::new();
        for (name, info) in infos {
            let info = place.place(&name, info)?;
            if placed.contains_key(&name) {
                return Err(Fault::TwiceTensor { name }.into());
            }
            placed.insert(name, info);
        }
        apart(&placed)?;
        Ok(Header { metadata: Metadata(metadata), tensors: placed })
    }
}

/// A file that is read from its beginning.
struct Scan<R> {
    file: R,
    at: u64,
    /// Where reading must end.
    end: u64,
    /// Where the file ends.
    len: u64,
}

impl<R: Read> Scan<R> {
    fn left(&self) -> u64 {
        self.end - self.at
    }

    fn fill(&mut self, out: &mut [u8]) -> Result<(), Stop> {
        if out.len() as u64 > self.left() {
            let is_all = self.end == self.len;
            return Err(if is_all { Fault::CutShort } else { Fault::HeaderTooLarge { most: MAX_HEADER } }.into());
        }
        self.file.read_exact(out).map_err(Stop::Io)?;
        self.at += out.len() as u64;
        Ok(())
    }

    fn half_word(&mut self) -> Result<u32, Stop> {
        let mut bytes = [0; 4];
        self.fill(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn word(&mut self) -> Result<u64, Stop> {
        let mut bytes = [0; 8];
        self.fill(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// A count of things of so many bytes each, at least, which must follow.
    fn count(&mut self, size: u64, what: impl Fn() -> String) -> Result<usize, Stop> {
        let count = self.word()?;
        let left = self.left();
        if count > left / size {
            return Err(Fault::Length { what: what(), count, left }.into());
        }
        Ok(count as usize)
    }

    fn bytes(&mut self, count: usize) -> Result<Vec<u8>, Stop> {
        let mut bytes = vec![0; count];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn text(&mut self, what: impl Fn() -> String) -> Result<String, Stop> {
        let count = self.count(1, &what)?;
        String::from_utf8(self.bytes(count)?).map_err(|_| Fault::Utf8 { what: what() }.into())
    }
}

fn version<R: Read>(scan: &mut Scan<R>) -> Result<(), Stop> {
    let mut magic = [0; 4];
    scan.fill(&mut magic)?;
    if magic != *b"GGUF" {
        return Err(Fault::Magic.into());
    }
    match scan.half_word()? {
        2 | 3 => Ok(()),
        // The least significant byte comes last.
        found if found != 0 && found & 0xffff == 0 => Err(Fault::BigEndian.into()),
        found => Err(Fault::Version { found }.into()),
    }
}

fn value<R: Read>(scan: &mut Scan<R>, key: &str) -> Result<Value, Stop> {
    let unknown = |id| Stop::Fault(Fault::ValueType { key: key.to_owned(), id });
    let named = || format!("`{key}`");
    match scan.half_word()? {
        TEXT => Ok(Value::Text(scan.text(named)?)),
        ARRAY => match scan.half_word()? {
            ARRAY => Err(Fault::Nested { key: key.to_owned() }.into()),
            TEXT => Ok(Value::List(List(texts(scan, key)?))),
            id => {
                let scalar = Scalar::of(id).ok_or_else(|| unknown(id))?;
                let count = scan.count(scalar.size() as u64, named)?;
                Ok(Value::List(List(Elements::Numbers(scalar, numbers(scan, (scalar, count), key)?))))
            }
        },
        id => {
            let scalar = Scalar::of(id).ok_or_else(|| unknown(id))?;
            Ok(scalar.value(&numbers(scan, (scalar, 1), key)?))
        }
    }
}

fn numbers<R: Read>(scan: &mut Scan<R>, (scalar, count): (Scalar, usize), key: &str) -> Result<Vec<u8>, Stop> {
    let bytes = scan.bytes(count * scalar.size())?;
    match bytes.iter().find(|byte| scalar == Scalar::Flag && **byte > 1) {
        Some(&found) => Err(Fault::Flag { key: key.to_owned(), found }.into()),
        None => Ok(bytes),
    }
}

fn texts<R: Read>(scan: &mut Scan<R>, key: &str) -> Result<Elements, Stop> {
    let named = || format!("`{key}`");
    // Each has its length before it.
    let count = scan.count(8, named)?;
    let (mut all, mut ends) = (String::new(), Vec::with_capacity(count));
    for at in 0..count {
        all += &scan.text(|| format!("`{key}`[{at}]"))?;
        ends.push(all.len());
    }
    Ok(Elements::Texts(all, ends))
}

/// A tensor as the header has it: its dimensions, the one of rows first, its type and its offset.
struct Said {
    dims: Vec<u64>,
    kind: u32,
    offset: u64,
}

fn info<R: Read>(scan: &mut Scan<R>) -> Result<(String, Said), Stop> {
    let name = scan.text(|| "the name of a tensor".to_owned())?;
    let found = scan.half_word()?;
    if found > MAX_DIMENSIONS {
        return Err(Fault::Dimensions { name, found }.into());
    }
    let dims = (0..found).map(|_| scan.word()).collect::<Result<Vec<_>, _>>()?;
    if dims.contains(&0) {
        return Err(Fault::Empty { name }.into());
    }
    let said = Said { dims, kind: scan.half_word()?, offset: scan.word()? };
    Ok((name, said))
}

fn alignment(value: Option<&Value>) -> Result<u64, Fault> {
    match value {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(Value::Whole(whole)) => {
            let alignment = u64::try_from(*whole).ok().filter(|alignment| alignment.is_power_of_two());
            alignment.ok_or_else(|| Fault::Alignment { found: whole.to_string() })
        }
        Some(other) => Err(Fault::Alignment { found: format!("{other:?}") }),
    }
}

/// Where tensors lie.
struct Place {
    /// Where the first one may begin, if that is a number.
    start: Option<u64>,
    alignment: u64,
    len: u64,
}

impl Place {
    fn place(&self, name: &str, Said { dims, kind, offset }: Said) -> Result<Info, Fault> {
        let owned = || name.to_owned();
        let kind = Type::of(kind).map_err(|found| Fault::Type { name: owned(), found })?;
        let row = dims.first().copied().unwrap_or(1);
        if !row.is_multiple_of(kind.block() as u64) {
            return Err(Fault::Row { name: owned(), found: row, block: kind.block() });
        }
        let blocks = |elements: u64| elements / kind.block() as u64;
        let elements = dims.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim));
        let bytes = elements.and_then(|elements| blocks(elements).checked_mul(kind.block_bytes() as u64));
        let shape = dims.iter().rev().map(|&dim| usize::try_from(dim)).collect::<Result<Vec<_>, _>>().ok();
        let floats = elements.and_then(|elements| isize::try_from(elements).ok()?.checked_mul(4));
        let (Some(bytes), Some(shape), Some(_)) = (bytes, shape, floats) else {
            return Err(Fault::TooLarge { name: owned(), found: dims });
        };
        if !offset.is_multiple_of(self.alignment) {
            return Err(Fault::Misaligned { name: owned(), found: offset, alignment: self.alignment });
        }
        let start = self.start.and_then(|start| start.checked_add(offset));
        let end = start.and_then(|start| start.checked_add(bytes));
        match (start, end) {
            (Some(start), Some(end)) if end <= self.len => Ok(Info { kind, shape, start, bytes }),
            _ => Err(Fault::Outside { name: owned() }),
        }
    }
}

/// Checks that no two tensors have a byte in common.
fn apart(tensors: &BTreeMap<String, Info>) -> Result<(), Fault> {
    let mut sorted: Vec<_> = tensors.iter().collect();
    sorted.sort_by_key(|(_, info)| info.start);
    for pair in sorted.windows(2) {
        let [(first, one), (second, two)] = pair else { continue };
        if one.start + one.bytes > two.start {
            let (first, second) = ((*first).clone(), (*second).clone());
            return Err(Fault::Overlap { first, second });
        }
    }
    Ok(())
}
