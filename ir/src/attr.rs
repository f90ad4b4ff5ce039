//! Attributes of ops in the text form.
use crate::family::Family;
use crate::rope::{Freqs, Scaling};
use crate::types::{Block, DType, Shape};

/// An attribute's text form.
pub trait Attr: Sized {
    /// Nothing for an attribute that is left out.
    fn show(&self) -> String;
    fn read(text: &str) -> Option<Self>;

    /// The value of an attribute that is left out, if it may be.
    fn absent() -> Option<Self> {
        None
    }
}

impl<A: Attr> Attr for Option<A> {
    fn show(&self) -> String {
        self.as_ref().map_or(String::new(), A::show)
    }
    fn read(text: &str) -> Option<Self> {
        A::read(text).map(Some)
    }
    fn absent() -> Option<Self> {
        Some(None)
    }
}

impl Attr for usize {
    fn show(&self) -> String {
        self.to_string()
    }
    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl Attr for f64 {
    /// The shortest text that reads back as the same number.
    fn show(&self) -> String {
        format!("{self:?}")
    }
    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

/// Nothing is escaped: names have neither quotes nor backslashes nor control characters.
impl Attr for String {
    fn show(&self) -> String {
        format!("\"{self}\"")
    }
    fn read(text: &str) -> Option<Self> {
        let inner = text.strip_prefix('"')?.strip_suffix('"')?;
        (!inner.contains(|c: char| c == '"' || c == '\\' || c.is_control())).then(|| inner.to_string())
    }
}

impl Attr for DType {
    fn show(&self) -> String {
        self.name().to_string()
    }
    fn read(text: &str) -> Option<Self> {
        DType::from_name(text)
    }
}

impl Attr for Shape {
    fn show(&self) -> String {
        self.to_string()
    }
    fn read(text: &str) -> Option<Self> {
        crate::text::read_shape(text)
    }
}

impl Attr for Block {
    fn show(&self) -> String {
        format!("[{}, {}]", self.rows, self.cols)
    }
    fn read(text: &str) -> Option<Self> {
        let (rows, cols) = text.strip_prefix('[')?.strip_suffix(']')?.split_once(", ")?;
        let size = |text: &str| text.parse().ok().filter(|&n| n > 0);
        Some(Block { rows: size(rows)?, cols: size(cols)? })
    }
}

impl Attr for Family {
    fn show(&self) -> String {
        self.name().to_string()
    }
    fn read(text: &str) -> Option<Self> {
        Family::ALL.into_iter().find(|f| f.name() == text)
    }
}

impl Attr for Freqs {
    fn show(&self) -> String {
        let rest = match &self.scaling {
            Scaling::Default => "default".to_string(),
            Scaling::Linear { factor } => format!("linear, {factor:?}"),
            Scaling::Dynamic { factor, original } => format!("dynamic, {factor:?}, {original}"),
            Scaling::Llama3 { factor, low, high, original } => {
                format!("llama3, {factor:?}, {low:?}, {high:?}, {original}")
            }
            Scaling::Yarn { factor, beta_fast, beta_slow, original, truncate } => {
                format!("yarn, {factor:?}, {beta_fast:?}, {beta_slow:?}, {original}, {truncate}")
            }
            Scaling::Long { factors } => {
                let factors: Vec<String> = factors.iter().map(|factor| format!("{factor:?}")).collect();
                format!("longrope, {}", factors.join(", "))
            }
        };
        format!("({:?}, {}, {rest})", self.theta, self.dim)
    }

    fn read(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.strip_prefix('(')?.strip_suffix(')')?.split(", ").collect();
        let f = |i: usize| words.get(i)?.parse::<f64>().ok();
        let n = |i: usize| words.get(i)?.parse::<usize>().ok();
        let scaling = match *words.get(2)? {
            "default" => Scaling::Default,
            "linear" => Scaling::Linear { factor: f(3)? },
            "dynamic" => Scaling::Dynamic { factor: f(3)?, original: n(4)? },
            "llama3" => Scaling::Llama3 { factor: f(3)?, low: f(4)?, high: f(5)?, original: n(6)? },
            "yarn" => {
                let truncate = words.get(7)?.parse().ok()?;
                Scaling::Yarn { factor: f(3)?, beta_fast: f(4)?, beta_slow: f(5)?, original: n(6)?, truncate }
            }
            "longrope" => Scaling::Long { factors: (3..words.len()).map(f).collect::<Option<_>>()? },
            _ => return None,
        };
        Some(Freqs { theta: f(0)?, dim: n(1)?, scaling })
    }
}
