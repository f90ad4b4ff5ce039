//! Layers that are one half each, by a list or by a pattern of letters.
use crate::Diagnostic;
use crate::fields::Fields;

/// What the only half of a layer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Only {
    StateSpace,
    Attention,
    Mlp,
    Experts,
}

impl Only {
    fn of_letter(letter: char) -> Option<Only> {
        Some(match letter {
            'M' => Only::StateSpace,
            '*' => Only::Attention,
            '-' => Only::Mlp,
            'E' => Only::Experts,
            _ => return None,
        })
    }

    fn of_name(name: &str) -> Option<Only> {
        Some(match name {
            "mamba" | "linear_attention" => Only::StateSpace,
            "attention" | "full_attention" => Only::Attention,
            "mlp" => Only::Mlp,
            "moe" => Only::Experts,
            _ => return None,
        })
    }

    fn letter(self) -> char {
        match self {
            Only::StateSpace => 'M',
            Only::Attention => '*',
            Only::Mlp => '-',
            Only::Experts => 'E',
        }
    }

    /// Whether the half mixes tokens.
    pub fn is_mixer(self) -> bool {
        matches!(self, Only::StateSpace | Only::Attention)
    }
}

/// The only half of each layer: as `hybrid_override_pattern` says, or else the list.
pub(crate) fn read(f: &Fields) -> Result<Vec<Only>, Diagnostic> {
    let pattern = "hybrid_override_pattern";
    let list = if f.has("layer_types") { "layer_types" } else { "layers_block_type" };
    let unknown = |name: &str, what: String| f.fault("config::value", name, format!("unknown layer type {what:?}"));
    let (name, of) = match f.text(pattern)? {
        Some(letters) => {
            let of = |letter: char| Only::of_letter(letter).ok_or_else(|| unknown(pattern, letter.to_string()));
            (pattern, letters.chars().map(of).collect::<Result<Vec<_>, _>>()?)
        }
        None => {
            let types = f.texts(list)?.ok_or_else(|| f.missing(list))?;
            let of = |found: &str| Only::of_name(found).ok_or_else(|| unknown(list, found.to_owned()));
            (list, types.into_iter().map(of).collect::<Result<Vec<_>, _>>()?)
        }
    };
    if of.is_empty() {
        return Err(f.fault("config::value", name, "names no layer"));
    }
    f.note(pattern, of.iter().map(|only| only.letter()).collect::<String>());
    f.note("num_hidden_layers", of.len());
    Ok(of)
}
