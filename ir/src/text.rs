//! The text form, both ways. `print(parse(print(g))) == print(g)`.
//!
//! One statement a line: `%0, %1 = op %a, %b {attr = 1} : type, type #segment // location`. A
//! kernel's body follows on the lines after it, as a graph of its own, indented. Results that have
//! names are returned as `name = %value`.
use std::collections::BTreeMap;
use std::fmt::Write;

use crate::Diagnostic;
use crate::attr::Attr;
use crate::family::Family;
use crate::graph::{Graph, NodeId, Value};
use crate::ops::Op;
use crate::types::{CacheType, DType, Dim, Layout, MAX_SIZE, Shape, SlotsType, TensorType, Type};

impl Graph {
    /// The text form.
    pub fn print(&self) -> String {
        self.print_with(&|_| vec![])
    }

    /// The text form with lines of `notes` below the nodes that they belong to.
    pub(crate) fn print_with(&self, notes: &dyn Fn(NodeId) -> Vec<String>) -> String {
        let mut out = String::new();
        self.print_at(&mut out, 0, notes);
        out
    }

    /// Name of each value in the text.
    fn names(&self, order: &[NodeId]) -> BTreeMap<Value, String> {
        let mut names = BTreeMap::new();
        let mut next = 0;
        for &id in order {
            for out in 0..self.types(id).len() {
                let name = match self.op(id) {
                    Op::Input { name } => format!("%{name}"),
                    _ => {
                        next += 1;
                        format!("%{}", next - 1)
                    }
                };
                names.insert(Value { node: id, out }, name);
            }
        }
        names
    }

    fn print_at(&self, out: &mut String, depth: usize, notes: &dyn Fn(NodeId) -> Vec<String>) {
        let order = self.order();
        let names = self.names(&order);
        let list = |vs: &[Value]| vs.iter().map(|v| names[v].as_str()).collect::<Vec<_>>().join(", ");
        let pad = "  ".repeat(depth);
        let params: Vec<_> = self.inputs().iter().map(|v| format!("{}: {}", names[v], self.ty(*v))).collect();
        let _ = writeln!(out, "{pad}graph @{}({}) {{", self.name, params.join(", "));
        for &id in &order {
            if matches!(self.op(id), Op::Input { .. }) {
                continue;
            }
            let results: Vec<Value> = (0..self.types(id).len()).map(|out| Value { node: id, out }).collect();
            let _ = writeln!(out, "{pad}  {} = {}", list(&results), self.statement(id, &list(&self.operands(id))));
            if let Op::Kernel { body, .. } = self.op(id) {
                body.print_at(out, depth + 2, &|_| vec![]);
            }
            for note in notes(id) {
                let _ = writeln!(out, "{pad}  ^ {note}");
            }
        }
        let result = |(name, v): (&str, Value)| match name {
            "" => names[&v].clone(),
            name => format!("{name} = {}", names[&v]),
        };
        let results: Vec<_> = self.results().map(result).collect();
        let _ = writeln!(out, "{pad}  return {}\n{pad}}}", results.join(", "));
    }

    fn statement(&self, id: NodeId, operands: &str) -> String {
        let mut line = self.op(id).name().to_string();
        if !operands.is_empty() {
            let _ = write!(line, " {operands}");
        }
        let attrs: Vec<_> = self.op(id).attributes().into_iter().map(|(n, v)| format!("{n} = {v}")).collect();
        if !attrs.is_empty() {
            let _ = write!(line, " {{{}}}", attrs.join(", "));
        }
        let types: Vec<_> = self.types(id).iter().map(|t| t.to_string()).collect();
        let _ = write!(line, " : {}", types.join(", "));
        if let Some(s) = self.segment(id) {
            let _ = write!(line, " #{s}");
        }
        if !self.location(id).is_empty() {
            let _ = write!(line, " // {}", self.location(id));
        }
        line
    }
}

/// Deepest nesting of bodies: some more than the two that a step of kernels has. Readers, the
/// verifier and the interpreter recurse over bodies, on stacks that may be small.
const MAX_DEPTH: usize = 8;

/// Reads a graph. The result is not verified, so that tests can write what the verifier must
/// refuse.
pub fn parse(text: &str) -> Result<Graph, Diagnostic> {
    let lines = text.lines().enumerate().map(|(i, l)| (i + 1, l.trim())).filter(|(_, l)| !l.is_empty());
    let mut parser = Parser { lines: lines.collect::<Vec<_>>().into_iter(), depth: 0 };
    let graph = parser.graph()?;
    match parser.lines.next() {
        None => Ok(graph),
        Some((n, _)) => Err(syntax(n, "text after the graph")),
    }
}

fn syntax(line: usize, message: impl Into<String>) -> Diagnostic {
    Diagnostic::new("ir::syntax", message).at(format!("line {line}"))
}

struct Parser<'a> {
    lines: std::vec::IntoIter<(usize, &'a str)>,
    /// Bodies around the one that is read.
    depth: usize,
}

impl<'a> Parser<'a> {
    fn line(&mut self) -> Result<(usize, &'a str), Diagnostic> {
        self.lines.next().ok_or_else(|| syntax(0, "the text ends inside a graph"))
    }

    fn graph(&mut self) -> Result<Graph, Diagnostic> {
        let (n, head) = self.line()?;
        let bad = || syntax(n, "a graph begins with `graph @name(%param: type, …) {`");
        let (name, rest) = head.strip_prefix("graph @").and_then(|h| h.split_once('(')).ok_or_else(bad)?;
        let params = rest.strip_suffix(") {").ok_or_else(bad)?;
        let mut graph = Graph::new(name);
        let mut names = BTreeMap::new();
        for param in split(params) {
            let (name, ty) = param.split_once(": ").ok_or_else(bad)?;
            let ty = read_type(ty).ok_or_else(|| syntax(n, format!("unknown type `{ty}`")))?;
            let v = graph.input(name.trim_start_matches('%'), ty);
            names.insert(name.to_string(), v);
        }
        loop {
            let (n, line) = self.line()?;
            if let Some(outputs) = line.strip_prefix("return") {
                graph.set_results(results(n, outputs.trim(), &names)?);
                break;
            }
            self.statement(n, line, &mut graph, &mut names)?;
        }
        match self.line()? {
            (_, "}") => Ok(graph),
            (n, _) => Err(syntax(n, "a graph ends with `}` after `return`")),
        }
    }

    fn statement(
        &mut self,
        n: usize,
        line: &str,
        graph: &mut Graph,
        names: &mut BTreeMap<String, Value>,
    ) -> Result<(), Diagnostic> {
        let bad = |what: &str| syntax(n, what);
        let (line, location) = line.split_once(" // ").unwrap_or((line, ""));
        let (results, rest) = line.split_once(" = ").ok_or_else(|| bad("a statement is `%name = op …`"))?;
        let (call, types) = rest.rsplit_once(" : ").ok_or_else(|| bad("a statement ends with ` : type`"))?;
        let (types, segment) = match types.rsplit_once(" #") {
            Some((t, s)) => (t, Some(s.parse().map_err(|_| bad("a segment is a number"))?)),
            None => (types, None),
        };
        let types = split(types)
            .into_iter()
            .map(|t| read_type(t).ok_or_else(|| syntax(n, format!("unknown type `{t}`"))))
            .collect::<Result<Vec<_>, _>>()?;
        let (head, attrs) = match call.split_once(" {") {
            Some((h, a)) => (h, a.strip_suffix('}').ok_or_else(|| bad("attributes end with `}`"))?),
            None => (call, ""),
        };
        let (name, operands) = head.split_once(' ').unwrap_or((head, ""));
        let operands = values(n, operands, names)?;
        let op = self.op(n, name, attrs)?;
        let id = graph.add(op, &operands, types, location);
        if let Some(s) = segment {
            graph.set_segment(id, s);
        }
        let results = split(results);
        if results.len() != graph.types(id).len() {
            return Err(bad("as many names as types, please"));
        }
        for (out, name) in results.into_iter().enumerate() {
            if names.insert(name.to_string(), Value { node: id, out }).is_some() {
                return Err(syntax(n, format!("`{name}` is defined twice")));
            }
        }
        Ok(())
    }

    /// The body of the kernel in line `n`.
    fn body(&mut self, n: usize) -> Result<Graph, Diagnostic> {
        if self.depth == MAX_DEPTH {
            return Err(syntax(n, format!("bodies are nested more than {MAX_DEPTH} deep")));
        }
        self.depth += 1;
        let body = self.graph();
        self.depth -= 1;
        body
    }

    fn op(&mut self, n: usize, name: &str, attrs: &str) -> Result<Op, Diagnostic> {
        let pair = |a: &str| {
            a.split_once(" = ")
                .map(|(n, v)| (n.to_string(), v.to_string()))
                .ok_or_else(|| syntax(n, "an attribute is `name = value`"))
        };
        let mut attrs = split(attrs).into_iter().map(pair).collect::<Result<Vec<_>, _>>()?;
        if name == "kernel" {
            let family = attrs.iter().find(|(n, _)| n == "family").and_then(|(_, v)| Family::read(v));
            let family = family.ok_or_else(|| syntax(n, "a kernel has a known `family`"))?;
            return Ok(Op::Kernel { family, body: Box::new(self.body(n)?) });
        }
        let op = Op::from_text(name, &mut attrs).map_err(|e| syntax(n, e))?;
        match attrs.first() {
            None => Ok(op),
            Some((a, _)) => Err(syntax(n, format!("`{name}` has no attribute `{a}`"))),
        }
    }
}

/// What a graph returns: `%value`, or `name = %value`.
fn results(n: usize, list: &str, names: &BTreeMap<String, Value>) -> Result<Vec<(String, Value)>, Diagnostic> {
    let one = |result| {
        let (name, v) = str::split_once(result, " = ").unwrap_or(("", result));
        if !name.chars().all(|c| c.is_ascii_alphanumeric() || "_.".contains(c)) {
            return Err(syntax(n, format!("`{name}` is no name: results have letters, digits, `_` and `.`")));
        }
        let v = names.get(v).ok_or_else(|| syntax(n, format!("`{v}` is not defined")))?;
        Ok((name.to_string(), *v))
    };
    split(list).into_iter().map(one).collect()
}

fn values(n: usize, list: &str, names: &BTreeMap<String, Value>) -> Result<Vec<Value>, Diagnostic> {
    split(list)
        .into_iter()
        .map(|v| names.get(v).copied().ok_or_else(|| syntax(n, format!("`{v}` is not defined"))))
        .collect()
}

/// Splits at commas that are outside of all brackets and quotes.
fn split(list: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut quoted, mut start) = (vec![], 0, false, 0);
    for (i, c) in list.char_indices() {
        match c {
            '"' => quoted = !quoted,
            '(' | '[' | '<' if !quoted => depth += 1,
            ')' | ']' | '>' if !quoted => depth -= 1,
            ',' if !quoted && depth == 0 => {
                parts.push(list[start..i].trim());
                start = i + 1;
            }
            _ => {}
        }
    }
    let last = list[start..].trim();
    if !last.is_empty() {
        parts.push(last);
    }
    parts
}

pub(crate) fn read_shape(text: &str) -> Option<Shape> {
    let inner = text.strip_prefix('[')?.strip_suffix(']')?;
    let dim = |d: &str| match d {
        "T" => Some(Dim::Tokens),
        "R" => Some(Dim::Rows),
        n => match n.strip_prefix("T*") {
            Some(count) => size(count).filter(|&n| n > 0).map(Dim::Choices),
            None => size(n).map(Dim::Fixed),
        },
    };
    split(inner).into_iter().map(dim).collect::<Option<Vec<_>>>().map(Shape)
}

fn size(text: &str) -> Option<usize> {
    text.parse().ok().filter(|&n| n <= MAX_SIZE)
}

/// Values are as wide as keys where nothing is said of them.
fn read_cache(parts: &[&str]) -> Option<CacheType> {
    let &[dtype, heads, head_dim, ref values @ ..] = parts else { return None };
    let size = |text: &str| size(text).filter(|&n| n > 0);
    let even = CacheType::even(DType::from_name(dtype)?, size(heads)?, size(head_dim)?);
    let &[values] = values else { return values.is_empty().then_some(even) };
    let (value_dim, is_prefix) = match values.strip_prefix("prefix ") {
        Some(text) => (size(text).filter(|&n| n <= even.head_dim)?, true),
        // Equal widths have one form.
        None => (size(values).filter(|&n| n != even.head_dim)?, false),
    };
    Some(CacheType { value_dim, is_prefix, ..even })
}

/// A slot's numbers can be counted.
fn read_slots(parts: &[&str]) -> Option<SlotsType> {
    let (dtype, mut sizes) = parts.split_first()?;
    let size = |text: &&str| size(text).filter(|&n| n > 0);
    let mut each = 1;
    if let Some((last, before)) = sizes.split_last()
        && let Some(slots) = last.strip_prefix("each ")
    {
        (each, sizes) = (size(&slots).filter(|&slots| slots > 1)?, before);
    }
    let shape = sizes.iter().map(size).collect::<Option<Vec<usize>>>().filter(|shape| !shape.is_empty())?;
    let numbers = shape.iter().try_fold(1usize, |numbers, &size| numbers.checked_mul(size))?;
    let numbers = numbers.checked_mul(each)?;
    (numbers <= MAX_SIZE).then_some(SlotsType { dtype: DType::from_name(dtype).filter(|t| t.is_float())?, shape, each })
}

fn read_type(text: &str) -> Option<Type> {
    if text == "batch" {
        return Some(Type::Batch);
    }
    if let Some(inner) = text.strip_prefix("cache<").and_then(|t| t.strip_suffix('>')) {
        return read_cache(&split(inner)).map(Type::Cache);
    }
    if let Some(inner) = text.strip_prefix("slots<").and_then(|t| t.strip_suffix('>')) {
        return read_slots(&split(inner)).map(Type::Slots);
    }
    let (text, layout) = match text.split_once('@') {
        Some((text, suffix)) => (text, Layout::from_suffix(suffix)?),
        None => (text, Layout::Rows),
    };
    let at = text.find('[')?;
    Some(Type::Tensor(TensorType { dtype: DType::from_name(&text[..at])?, shape: read_shape(&text[at..])?, layout }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"graph @step(%ids: i32[T], %kv0: cache<bf16, 2, 32>, %batch: batch) {
  %0 = weight {name = "model.embed_tokens.weight"} : bf16[512, 192]
  %1 = gather %0, %ids : bf16[T, 192] // model.embed_tokens
  %2 = rope_freqs {freqs = (10000.0, 32, llama3, 4.0, 1.0, 4.0, 128)} : f32[16]
  %3 = kernel %1 {family = rows} : bf16[T, 192] #3 // model.layers.0
    graph @k(%a0: bf16[T, 192]) {
      %0 = silu %a0 : bf16[T, 192]
      return %0
    }
  return hidden = %3, kv0 = %kv0, %1
}
"#;

    #[test]
    fn print_of_parse_is_the_text() {
        // `%2` reaches no output, so it is printed last and numbered after the kernel.
        let once = parse(TEXT).unwrap().print();
        assert_eq!(parse(&once).unwrap().print(), once);
        assert!(once.contains("%2 = kernel %1 {family = rows} : bf16[T, 192] #3 // model.layers.0\n"), "{once}");
    }

    #[test]
    fn errors_name_the_line() {
        let check = |from: &str, to: &str| parse(&TEXT.replace(from, to)).unwrap_err().to_string();
        assert_eq!(check("= gather", "= gathr"), "line 3: unknown op `gathr`");
        assert_eq!(check("%0, %ids", "%9, %ids"), "line 3: `%9` is not defined");
        assert_eq!(check("i32[T]", "i33[T]"), "line 1: unknown type `i33[T]`");
        assert_eq!(check("%3 = kernel", "%0 = kernel"), "line 5: `%0` is defined twice");
        assert_eq!(check("  return hidden = %3, kv0 = %kv0, %1\n}\n", ""), "line 0: the text ends inside a graph");
        assert_eq!(check("kv0 = %kv0", "kv0 = %kv"), "line 10: `%kv` is not defined");
        let wrong = "line 10: `a-b` is no name: results have letters, digits, `_` and `.`";
        assert_eq!(check("hidden = ", "a-b = "), wrong);
        assert_eq!(check("family = rows", "family = row"), "line 5: a kernel has a known `family`");
        assert_eq!(
            check("llama3, 4.0, ", "llama3, "),
            "line 4: attribute `freqs` cannot be `(10000.0, 32, llama3, 1.0, 4.0, 128)`"
        );
        for wrong in ["cache<bf16, 0, 32>", "cache<bf16, 2, 0>", "cache<bf16, 18446744073709551615, 32>"] {
            let says = format!("line 1: unknown type `{wrong}`");
            assert_eq!(check("cache<bf16, 2, 32>", wrong), says);
        }
        assert_eq!(
            check("bf16[512, 192]", "bf16[18446744073709551615]"),
            "line 2: unknown type `bf16[18446744073709551615]`"
        );
    }

    /// A kernel in a kernel in a kernel …
    fn nested(depth: usize) -> String {
        let open = "graph @k(%a: f32[T, 4]) {\n%0 = kernel %a {family = rows} : f32[T, 4]\n";
        let body = "graph @k(%a: f32[T, 4]) {\n%0 = silu %a : f32[T, 4]\nreturn %0\n}\n";
        open.repeat(depth) + body + &"return %0\n}\n".repeat(depth)
    }

    #[test]
    fn bodies_nest_so_deep_and_no_deeper() {
        let small = std::thread::Builder::new().stack_size(2 << 20);
        let read = || {
            let deep = parse(&nested(MAX_DEPTH)).unwrap();
            deep.verify().unwrap();
            assert_eq!(parse(&deep.print()).unwrap().print(), deep.print());
            for depth in [MAX_DEPTH + 1, 20_000] {
                let error = parse(&nested(depth)).unwrap_err();
                let line = 2 * (MAX_DEPTH + 1);
                assert_eq!(error.to_string(), format!("line {line}: bodies are nested more than 8 deep"));
                assert_eq!(error.code, "ir::syntax");
            }
        };
        small.spawn(read).unwrap().join().unwrap();
    }
}
