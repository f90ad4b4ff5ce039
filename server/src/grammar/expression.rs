//! The cost of an expression for those that follow it. llguidance follows expressions by
//! derivatives: the rest of one after a character is an expression again, and the search for it
//! visits everything that may be first. The items of `a?b?c?…` can each be first as long as all
//! before them are left out, so with n items one character takes n² / 2 steps, which nothing
//! interrupts. These steps are counted here before anything is made of the expression.
use regex_syntax::ast::parse::Parser;
use regex_syntax::ast::{Ast, ClassSet, ClassSetItem, RepetitionKind, RepetitionRange};

/// Steps of a class of Unicode: what it has of ranges.
const UNICODE: u64 = 250;

/// What an expression, or a part of one, takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measure {
    /// Ways in which it may begin.
    first: u64,
    /// Steps after one character, for the rest of it and all that follows in it.
    pub steps: u64,
    /// Whether nothing is a match.
    is_optional: bool,
}

impl Measure {
    /// Nothing.
    pub const NOTHING: Measure = Measure { first: 0, steps: 0, is_optional: true };

    /// A text of `len` characters.
    pub const fn text(len: usize) -> Measure {
        Measure { first: (len > 0) as u64, steps: len as u64, is_optional: len == 0 }
    }

    /// An expression as it is written. One that cannot be read takes nothing: it is refused when it
    /// is read to be followed.
    pub fn written(expression: &str) -> Measure {
        Parser::new().parse(expression).map_or(Measure::NOTHING, |tree| measure(&tree))
    }

    /// One of both.
    pub fn or(self, other: Measure) -> Measure {
        Measure {
            first: self.first.saturating_add(other.first),
            steps: self.steps.saturating_add(other.steps),
            is_optional: self.is_optional || other.is_optional,
        }
    }

    /// A sequence of parts.
    pub fn row(parts: &[Measure]) -> Measure {
        parts.iter().copied().rev().reduce(|rest, part| part.then(rest)).unwrap_or(Measure::NOTHING)
    }

    fn then(self, rest: Measure) -> Measure {
        let first = self.first.saturating_add(if self.is_optional { rest.first } else { 0 });
        Measure {
            first,
            steps: self.steps.saturating_add(rest.steps).saturating_add(first),
            is_optional: self.is_optional && rest.is_optional,
        }
    }

    /// Any number of it, but for none.
    pub fn many(self) -> Measure {
        Measure { steps: self.steps.saturating_add(self.first), ..self }
    }

    /// It, or nothing.
    pub fn optional(self) -> Measure {
        Measure { is_optional: true, ..self }
    }
}

/// The tree is at most as deep as its parser lets it be.
fn measure(tree: &Ast) -> Measure {
    match tree {
        Ast::Empty(_) | Ast::Flags(_) | Ast::Assertion(_) => Measure::NOTHING,
        Ast::Literal(_) => Measure::text(1),
        Ast::Dot(_) => class(4),
        Ast::ClassUnicode(_) | Ast::ClassPerl(_) => class(UNICODE),
        Ast::ClassBracketed(set) => class(ranges(&set.kind)),
        Ast::Group(group) => measure(&group.ast),
        Ast::Alternation(any) => any.asts.iter().map(measure).reduce(Measure::or).unwrap_or(Measure::NOTHING),
        Ast::Concat(row) => Measure::row(&row.asts.iter().map(measure).collect::<Vec<_>>()),
        Ast::Repetition(repetition) => {
            let one = measure(&repetition.ast);
            match &repetition.op.kind {
                RepetitionKind::ZeroOrOne => one.optional(),
                RepetitionKind::OneOrMore => one.many(),
                RepetitionKind::ZeroOrMore => one.many().optional(),
                RepetitionKind::Range(range) if least(range) == 0 => one.many().optional(),
                RepetitionKind::Range(_) => one.many(),
            }
        }
    }
}

fn least(range: &RepetitionRange) -> u32 {
    match *range {
        RepetitionRange::Exactly(least) | RepetitionRange::AtLeast(least) | RepetitionRange::Bounded(least, _) => least,
    }
}

fn class(ranges: u64) -> Measure {
    Measure { first: 1, steps: ranges, is_optional: false }
}

/// Ranges of a class, about.
fn ranges(set: &ClassSet) -> u64 {
    match set {
        ClassSet::BinaryOp(both) => ranges(&both.lhs).saturating_add(ranges(&both.rhs)),
        ClassSet::Item(item) => ranges_of(item),
    }
}

fn ranges_of(item: &ClassSetItem) -> u64 {
    match item {
        ClassSetItem::Empty(_) => 0,
        ClassSetItem::Literal(_) | ClassSetItem::Range(_) | ClassSetItem::Ascii(_) => 1,
        ClassSetItem::Unicode(_) | ClassSetItem::Perl(_) => UNICODE,
        ClassSetItem::Bracketed(set) => ranges(&set.kind),
        ClassSetItem::Union(all) => all.items.iter().map(ranges_of).fold(0, u64::saturating_add),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_left_out_takes_the_square_of_its_number() {
        let steps = |expression: &str| Measure::written(expression).steps;
        assert_eq!(steps("abc"), 5);
        assert_eq!(steps("a?b?c?"), 3 + 3 + 2);
        assert_eq!(steps("xa?b?c?"), steps("a?b?c?") + 2);
        for (one, place) in [("a?", 0), ("a*", 1), ("(b|a?)", 2), ("(a?)+", 3), ("a{0,9}", 4), ("(a?){9}", 5)] {
            let many = steps(&one.repeat(1000));
            assert!((500_000..=2_100_000).contains(&many), "{place}: {many}");
        }
        // What must be there takes its length.
        for one in ["ab", "a+", "(a|b)", "a{3,9}", "[a-z]", ".", "(a?b)"] {
            assert!(steps(&one.repeat(1000)) <= 10_000, "{one}");
        }
        assert_eq!(steps("("), 0);
        assert!(steps(r"[\p{L}\w&&[a-z]]") > UNICODE);
    }
}
