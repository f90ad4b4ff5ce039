//! The operands and results of a kernel, read from its body in the text form of the graph IR, for
//! programs without graphs.

/// Types of a kernel's operands and results, in the order of its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature<'a> {
    /// Those of the parameters.
    pub operands: Vec<&'a str>,
    /// Those of what is returned, new states among them, which have no argument.
    pub results: Vec<&'a str>,
}

impl<'a> Signature<'a> {
    /// That of a body; none if the text does not say.
    pub fn of(body: &'a str) -> Option<Signature<'a>> {
        let head = body.lines().next()?.split_once('(')?.1.rsplit_once(')')?.0;
        let parameters = head.split(", %").map(|one| one.trim_start_matches('%').split_once(": "));
        let parameters: Vec<(&str, &str)> = parameters.collect::<Option<_>>()?;
        let names = body.lines().rev().find_map(|line| line.trim().strip_prefix("return "))?;
        let of = |name: &str| {
            let parameter = parameters.iter().find(|(other, _)| Some(*other) == name.strip_prefix('%'));
            parameter.map(|(_, ty)| *ty).or_else(|| statement(body, name))
        };
        let results = names.split(", ").map(of).collect::<Option<_>>()?;
        Some(Signature { operands: parameters.into_iter().map(|(_, ty)| ty).collect(), results })
    }
}

/// Whether a type is one of what layers keep between steps.
pub fn is_state(ty: &str) -> bool {
    ty.starts_with("cache<") || ty.starts_with("slots<")
}

/// The type of a value that a statement of the body names: `%0, %1 = op … : type, type`.
fn statement<'a>(body: &'a str, name: &str) -> Option<&'a str> {
    body.lines().find_map(|line| {
        let (names, rest) = line.trim().split_once(" = ")?;
        let number = names.split(", ").position(|other| other == name)?;
        let (_, types) = rest.split(" // ").next()?.rsplit_once(" : ")?;
        nth(types, number)
    })
}

/// A type of a list. Commas inside brackets belong to a type.
fn nth(types: &str, number: usize) -> Option<&str> {
    let mut depth = 0usize;
    let comma = |c: char| {
        match c {
            '[' | '<' | '(' => depth += 1,
            ']' | '>' | ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    };
    let ty = types.split(comma).nth(number)?.trim();
    Some(ty.split(" #").next().unwrap_or(ty))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_say_what_they_take_and_make() {
        let body =
            "graph @k(%a0: bf16[T, 4, 8], %a1: cache<bf16, 1, 8, prefix 4>, %a2: i32[T*2]@grouped(4, 16), %a3: batch) {
  %0, %1 = route %a0 {by = (8, softmax, 1, 1, max, true, 1.0)} : f32[T, 8], i32[T*8]@grouped(4, 16) #2 // x
  %2 = key_write %a1, %a0, %a3 {values = 4} : cache<bf16, 1, 8, prefix 4>
  return %1, %2, %a2
}
";
        let signature = Signature::of(body).unwrap();
        let (cache, list) = ("cache<bf16, 1, 8, prefix 4>", "i32[T*2]@grouped(4, 16)");
        assert_eq!(signature.operands, ["bf16[T, 4, 8]", cache, list, "batch"]);
        assert_eq!(signature.results, ["i32[T*8]@grouped(4, 16)", cache, list]);
        for broken in
            ["", "graph @k", "graph @k() {}", "graph @k(%a: batch) {\n}\n", "graph @k(%a: batch) {\n  return %b\n}\n"]
        {
            assert_eq!(Signature::of(broken), None, "{broken}");
        }
    }
}
