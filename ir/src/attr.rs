//! Attributes of ops in the text form.
use crate::family::Family;
use crate::rope::{Freqs, Scaling};
use crate::types::{Best, Block, DType, Encode, Encoded, Fact, Layout, Order, Router, Rule, Score, Shape, Turn, Whole};

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

/// What stands in an op as one attribute, and in the text form as one or several.
pub trait Attributes: Sized {
    /// Those of the text form, for an attribute of this name.
    fn named(&self, name: &'static str) -> Vec<(&'static str, String)>;
    /// Takes them out of those of a text, or says what is wrong with one.
    fn take(attrs: &mut Vec<(String, String)>, name: &str) -> Result<Self, String>;
}

impl<A: Attr> Attributes for A {
    fn named(&self, name: &'static str) -> Vec<(&'static str, String)> {
        vec![(name, self.show())]
    }
    fn take(attrs: &mut Vec<(String, String)>, name: &str) -> Result<A, String> {
        let Some(at) = attrs.iter().position(|(n, _)| n == name) else {
            return A::absent().ok_or_else(|| format!("attribute `{name}` is missing"));
        };
        let (_, text) = attrs.remove(at);
        A::read(&text).ok_or_else(|| format!("attribute `{name}` cannot be `{text}`"))
    }
}

/// By its fields.
impl Attributes for Encode {
    fn named(&self, _: &'static str) -> Vec<(&'static str, String)> {
        let Encode { codes, scales, block } = self;
        vec![("codes", codes.show()), ("scales", scales.show()), ("block", block.show())]
    }
    fn take(attrs: &mut Vec<(String, String)>, _: &str) -> Result<Encode, String> {
        let [codes, scales] = ["codes", "scales"].map(|name| DType::take(attrs, name));
        Ok(Encode { codes: codes?, scales: scales?, block: Attributes::take(attrs, "block")? })
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

impl Attr for bool {
    fn show(&self) -> String {
        self.to_string()
    }
    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

/// A token's own position is left out.
impl Attr for Turn {
    fn show(&self) -> String {
        match self {
            Turn::Token => String::new(),
            Turn::Back => "back".to_string(),
            Turn::Block(every) => format!("block({every})"),
        }
    }
    fn read(text: &str) -> Option<Self> {
        let every = || text.strip_prefix("block(")?.strip_suffix(')')?.parse().ok().filter(|&every| every > 0);
        if text == "back" { Some(Turn::Back) } else { every().map(Turn::Block) }
    }
    fn absent() -> Option<Self> {
        Some(Turn::Token)
    }
}

/// As `[0, 3]`.
impl Attr for Vec<usize> {
    fn show(&self) -> String {
        format!("{self:?}")
    }
    fn read(text: &str) -> Option<Self> {
        let inner = text.strip_prefix('[')?.strip_suffix(']')?;
        inner.split(", ").map(|number| number.parse().ok()).collect()
    }
}

impl Attr for i32 {
    fn show(&self) -> String {
        self.to_string()
    }
    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl Attr for Order {
    fn show(&self) -> String {
        self.name().to_string()
    }
    fn read(text: &str) -> Option<Self> {
        Order::ALL.into_iter().find(|order| order.name() == text)
    }
}

impl Attr for Encoded {
    fn show(&self) -> String {
        self.name().to_string()
    }
    fn read(text: &str) -> Option<Self> {
        Encoded::ALL.into_iter().find(|made| made.name() == text)
    }
}

impl Attr for Fact {
    fn show(&self) -> String {
        self.text()
    }
    fn read(text: &str) -> Option<Self> {
        Fact::of_text(text)
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

/// As an `f64`.
impl Attr for f32 {
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

/// Rows and columns of a block, at least one of each.
impl Attr for [usize; 2] {
    fn show(&self) -> String {
        format!("{self:?}")
    }
    fn read(text: &str) -> Option<Self> {
        let (rows, cols) = text.strip_prefix('[')?.strip_suffix(']')?.split_once(", ")?;
        let size = |text: &str| text.parse().ok().filter(|&n| n > 0);
        Some([size(rows)?, size(cols)?])
    }
}

impl Attr for Block {
    fn show(&self) -> String {
        [self.rows, self.cols].show()
    }
    fn read(text: &str) -> Option<Self> {
        let [rows, cols] = Attr::read(text)?;
        Some(Block { rows, cols })
    }
}

impl Attr for Rule {
    fn show(&self) -> String {
        match self {
            Rule::Static => "static".to_string(),
            Rule::Row => "row".to_string(),
            Rule::Group(columns) => format!("group({columns})"),
            Rule::Power(columns) => format!("power({columns})"),
            Rule::Mx(columns) => format!("mx({columns})"),
            Rule::MxCodes(columns) => format!("mx_codes({columns})"),
        }
    }
    fn read(text: &str) -> Option<Self> {
        let (name, columns) = text.strip_suffix(')').and_then(|text| text.split_once('(')).unwrap_or((text, "0"));
        match (name, columns.parse::<usize>().ok()?) {
            ("static", 0) => Some(Rule::Static),
            ("row", 0) => Some(Rule::Row),
            ("group", columns) if columns > 0 => Some(Rule::Group(columns)),
            ("power", columns) if columns > 0 => Some(Rule::Power(columns)),
            ("mx", columns) if columns > 0 => Some(Rule::Mx(columns)),
            ("mx_codes", columns) if columns > 0 => Some(Rule::MxCodes(columns)),
            _ => None,
        }
    }
}

/// A name, and which rows of how many.
impl Attr for Whole {
    fn show(&self) -> String {
        let Whole { name, start, rows } = self;
        format!("({}, {start}, {rows})", name.show())
    }
    fn read(text: &str) -> Option<Self> {
        let (rest, rows) = text.strip_prefix('(')?.strip_suffix(')')?.rsplit_once(", ")?;
        let (name, start) = rest.rsplit_once(", ")?;
        Some(Whole { name: Attr::read(name)?, start: start.parse().ok()?, rows: rows.parse().ok()? })
    }
}

impl Attr for Router {
    fn show(&self) -> String {
        let Router { k, score, groups, kept, best, renormalise, scale } = self;
        let (score, best) = (score.name(), best.name());
        format!("({k}, {score}, {groups}, {kept}, {best}, {renormalise}, {scale:?})")
    }
    fn read(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.strip_prefix('(')?.strip_suffix(')')?.split(", ").collect();
        let &[k, score, groups, kept, best, renormalise, scale] = &words[..] else { return None };
        Some(Router {
            k: k.parse().ok()?,
            score: Score::ALL.into_iter().find(|known| known.name() == score)?,
            groups: groups.parse().ok()?,
            kept: kept.parse().ok()?,
            best: Best::ALL.into_iter().find(|known| known.name() == best)?,
            renormalise: renormalise.parse().ok()?,
            scale: scale.parse().ok()?,
        })
    }
}

/// Of what is packed: where no layout is named, it is that of weights.
impl Attr for Layout {
    fn show(&self) -> String {
        match self {
            Layout::Rows => "rows",
            Layout::Panels => "",
            Layout::Columns => "columns",
            Layout::Scaled(_) => "scaled",
            Layout::Mx(_) => "mx",
            Layout::Grouped { .. } => "grouped",
        }
        .to_string()
    }
    fn read(text: &str) -> Option<Self> {
        [Layout::Rows, Layout::Columns].into_iter().find(|layout| layout.show() == text)
    }
    fn absent() -> Option<Self> {
        Some(Layout::Panels)
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
        self.to_string()
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
            "proportional" => Scaling::Proportional { factor: f(3)?, turned: n(4)? },
            "longrope" => Scaling::Long { factors: (3..words.len()).map(f).collect::<Option<_>>()? },
            _ => return None,
        };
        Some(Freqs { theta: f(0)?, dim: n(1)?, scaling })
    }
}
