//! Checks that every rule of `--quant` quantises something, or keeps something from it.
use super::{HEAD, Quantisation};
use crate::Diagnostic;
use std::collections::BTreeSet;

/// The modules of a model, each by the spellings of its name, the own one first.
#[derive(Clone, Copy, Debug)]
pub struct Modules<'a> {
    /// Those with a quantised weight.
    pub quantised: &'a [Vec<String>],
    /// Those with a weight that rows are multiplied by, quantised or not.
    pub products: &'a [Vec<String>],
    /// All that have tensors.
    pub all: &'a [Vec<String>],
}

impl Quantisation {
    /// The first of the rules that name modules and do nothing, as an error that says why.
    pub fn check_use(&self, modules: &Modules) -> Result<(), Diagnostic> {
        let rule_of = |spelled: &Vec<String>| {
            self.rules.iter().position(|(names, _)| spelled.iter().any(|module| names.has(module)))
        };
        let mut used: BTreeSet<usize> = modules.quantised.iter().filter_map(rule_of).collect();
        let kept = modules.products.iter().filter_map(rule_of).filter(|&rule| self.rules[rule].1.is_none());
        used.extend(kept);
        let idle = self.rules.iter().enumerate().find(|(index, (names, scheme))| {
            let keeps_head = scheme.is_none() && names.has(HEAD);
            !(used.contains(index) || names.are_layers() || keeps_head)
        });
        match idle {
            Some((index, _)) => Err(self.idle(index, modules)),
            None => Ok(()),
        }
    }

    fn idle(&self, index: usize, modules: &Modules) -> Diagnostic {
        let names = &self.rules[index].0;
        let fault = |message: &str| Diagnostic::new("config::quant", format!("--quant {names}=…: {message}"));
        let has = |spelled: &&Vec<String>| spelled.iter().any(|module| names.has(module));
        let known: BTreeSet<String> = modules.products.iter().map(|spelled| starred(&spelled[0])).collect();
        if let Some(product) = modules.products.iter().find(has) {
            return fault(&match modules.quantised.contains(product) || self.rules[index].1.is_none() {
                true => format!("rules before it have all products of this name, as {}", product[0]),
                false => format!("{} is a product whose weight is not quantised here", product[0]),
            });
        }
        let sorted = |known: &BTreeSet<String>| {
            let mut known: Vec<&str> = known.iter().map(String::as_str).collect();
            let wanted = names.to_string();
            known.sort_by_key(|name| distance(last(&wanted), last(name)));
            format!("Products of the model: {}.", known.join(", "))
        };
        if names.has(HEAD) {
            return fault("the head has no weight of its own, and the embedding's is not quantised")
                .help(sorted(&known));
        }
        match modules.all.iter().find(has) {
            Some(other) => fault(&format!("{} is no product, and only products are quantised", other[0])),
            None => fault("no product of the model has such a name"),
        }
        .help(sorted(&known))
    }
}

/// A name with a star in the place of numbers.
pub fn starred(name: &str) -> String {
    let part = |part: &str| if part.bytes().all(|b| b.is_ascii_digit()) { "*".to_owned() } else { part.to_owned() };
    name.split('.').map(part).collect::<Vec<_>>().join(".")
}

fn last(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// The letters that have to be added, removed or replaced to make one of the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut before = std::mem::replace(&mut row[0], i + 1);
        for (j, &b) in other.iter().enumerate() {
            let replaced = before + usize::from(a != b);
            before = row[j + 1];
            row[j + 1] = replaced.min(before + 1).min(row[j] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        let pairs = [("down_porj", "down_proj", 2), ("q_proj", "q_proj", 0), ("", "ab", 2), ("kitten", "sitting", 3)];
        for (one, other, far) in pairs {
            assert_eq!((distance(one, other), distance(other, one)), (far, far), "{one} {other}");
        }
        assert_eq!(starred("model.layers.10.mlp.experts.0.up_proj"), "model.layers.*.mlp.experts.*.up_proj");
    }
}
