//! The demands of a schema, found in one walk before a grammar is made of it: grammars grow by
//! objects with many properties, and by combinations of alternatives.
use std::collections::{BTreeSet, HashMap};

use serde_json::{Map, Value};

use super::lark;
use super::limits::{FormError, FormLimits, at_most};

/// That a grammar of this schema is not too much.
pub fn check(schema: &Value, limits: &FormLimits) -> Result<(), FormError> {
    let mut counts = Counts::default();
    let mut left = vec![schema];
    while let Some(value) = left.pop() {
        counts.values += 1;
        match value {
            // Names within another schema would lead elsewhere.
            Value::Object(fields) if counts.values > 1 && fields.get("$id").is_some_and(Value::is_string) => {
                return Err(FormError::Wrong("`$id` is only taken at the top of a schema".into()));
            }
            Value::Object(fields) => {
                counts.object(fields, limits)?;
                left.extend(fields.iter().filter(|(name, _)| name.as_str() != "enum").map(|(_, value)| value));
            }
            Value::Array(all) => left.extend(all),
            _ => {}
        }
    }
    counts.check(limits)?;
    let mut weigh = Weigh { root: schema, limits, known: HashMap::new(), multiples: counts.multiples };
    let weight = weigh.of(schema, 0)?;
    at_most("expressions for one text", weight.conjuncts, limits.conjuncts)?;
    at_most("combined alternatives", weight.most, limits.combined)
}

#[derive(Default)]
struct Counts {
    values: usize,
    enum_values: usize,
    properties: usize,
    patterns: usize,
    multiples: BTreeSet<u64>,
    steps: u64,
}

impl Counts {
    fn object(&mut self, fields: &Map<String, Value>, limits: &FormLimits) -> Result<(), FormError> {
        let len = |name: &str| match fields.get(name) {
            Some(Value::Object(fields)) => fields.len(),
            Some(Value::Array(all)) => all.len(),
            _ => 0,
        };
        let own = len("properties").max(len("required"));
        at_most("properties of one object", own, limits.properties)?;
        self.properties += own;
        self.patterns += len("patternProperties");
        self.enum_values += len("enum");
        let written = ["pattern", "whitespace_pattern"].into_iter().filter_map(|name| fields.get(name)?.as_str());
        let named = fields.get("patternProperties").and_then(Value::as_object).into_iter().flat_map(Map::keys);
        for pattern in written.chain(named.map(String::as_str)) {
            self.steps = self.steps.saturating_add(lark::measured(pattern, limits)?.steps);
        }
        if let Some(Value::Number(multiple)) = fields.get("multipleOf") {
            self.multiples.insert(digits(&multiple.to_string()));
        }
        Ok(())
    }

    fn check(&self, limits: &FormLimits) -> Result<(), FormError> {
        at_most("values in its schema", self.values, limits.values)?;
        at_most("values of `enum`", self.enum_values, limits.enum_values)?;
        at_most("properties", self.properties, limits.all_properties)?;
        at_most("patterns of properties", self.patterns, limits.patterns)?;
        at_most(lark::STEPS, self.steps, limits.steps)?;
        let sum = self.multiples.iter().fold(0_u64, |sum, &multiple| sum.saturating_add(multiple));
        at_most("units of `multipleOf`", sum, limits.multiples)
    }
}

/// The digits of a number as one, without its point and exponent: what states of a multiple are
/// counted by.
fn digits(number: &str) -> u64 {
    let mantissa = number.split(['e', 'E']).next().unwrap_or_default();
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    digits.trim_end_matches('0').trim_start_matches('0').parse().unwrap_or(u64::MAX * u64::from(!digits.is_empty()))
}

/// A part of an address with its `%24` as characters.
fn decoded(text: &str) -> String {
    let hex = |pair: Option<&str>| pair.and_then(|pair| u8::from_str_radix(pair, 16).ok());
    let (mut bytes, mut at) = (vec![], 0);
    while let Some(&byte) = text.as_bytes().get(at) {
        let written = if byte == b'%' { hex(text.get(at + 1..at + 3)) } else { None };
        bytes.push(written.unwrap_or(byte));
        at += if written.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What a schema is when it is combined with others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Weight {
    /// Alternatives, at any depth.
    ways: u64,
    /// The largest product that was combined.
    most: u64,
    /// Expressions that one text must match.
    conjuncts: u64,
}

const ONE: Weight = Weight { ways: 1, most: 1, conjuncts: 0 };

impl Weight {
    /// One of both.
    fn or(self, other: Weight) -> Weight {
        Weight {
            ways: self.ways.saturating_add(other.ways),
            most: self.most.max(other.most),
            conjuncts: self.conjuncts.max(other.conjuncts),
        }
    }

    /// Side by side, as properties are.
    fn beside(self, other: Weight) -> Weight {
        Weight { ways: self.ways.saturating_add(other.ways - 1), ..self.or(other) }
    }

    /// Both at once.
    fn and(self, other: Weight) -> Weight {
        let ways = self.ways.saturating_mul(other.ways);
        let combined = if self.ways > 1 && other.ways > 1 { ways } else { 1 };
        Weight {
            ways,
            most: combined.max(self.most).max(other.most),
            conjuncts: self.conjuncts.saturating_add(other.conjuncts),
        }
    }
}

struct Weigh<'a> {
    root: &'a Value,
    limits: &'a FormLimits,
    /// By reference; those that are being weighed are one.
    known: HashMap<&'a str, Weight>,
    multiples: BTreeSet<u64>,
}

impl<'a> Weigh<'a> {
    fn of(&mut self, schema: &'a Value, depth: usize) -> Result<Weight, FormError> {
        at_most("schemas within one another", depth, self.limits.references)?;
        let Value::Object(fields) = schema else { return Ok(ONE) };
        let mut beside = ONE;
        let mut at_once = ONE;
        for (name, value) in fields {
            match (name.as_str(), value) {
                ("allOf", Value::Array(all)) => {
                    for schema in all {
                        at_once = at_once.and(self.of(schema, depth + 1)?);
                    }
                    self.check_multiples(all.len())?;
                }
                ("anyOf" | "oneOf", Value::Array(all)) => {
                    let mut any = Weight { ways: 0, ..ONE };
                    for schema in all {
                        any = any.or(self.of(schema, depth + 1)?);
                    }
                    at_once = at_once.and(Weight { ways: any.ways.max(1), ..any });
                }
                ("$ref" | "$dynamicRef", Value::String(name)) => at_once = at_once.and(self.reference(name, depth)?),
                ("type", Value::Array(kinds)) => beside.ways = beside.ways.saturating_add(kinds.len() as u64),
                ("pattern" | "format" | "minLength" | "maxLength", _) => beside.conjuncts = beside.conjuncts.max(1),
                ("properties" | "patternProperties", Value::Object(all)) => {
                    for schema in all.values() {
                        beside = beside.beside(self.of(schema, depth + 1)?);
                    }
                }
                ("prefixItems" | "items", Value::Array(all)) => {
                    for schema in all {
                        beside = beside.beside(self.of(schema, depth + 1)?);
                    }
                }
                ("items" | "additionalProperties" | "additionalItems" | "unevaluatedProperties", schema) => {
                    beside = beside.beside(self.of(schema, depth + 1)?);
                }
                _ => {}
            }
        }
        Ok(beside.and(at_once))
    }

    /// Of a schema that is named.
    fn reference(&mut self, name: &'a str, depth: usize) -> Result<Weight, FormError> {
        if let Some(&weight) = self.known.get(name) {
            return Ok(weight);
        }
        let target = name.strip_prefix('#').and_then(|pointer| self.root.pointer(&decoded(pointer)));
        let nowhere = || FormError::Wrong(format!("`$ref` {name:?} is no place in this schema (`#/…`)"));
        let target = target.ok_or_else(nowhere)?;
        self.known.insert(name, ONE);
        let weight = self.of(target, depth + 1)?;
        self.known.insert(name, weight);
        Ok(weight)
    }

    /// Where schemas are combined, multiples may be too.
    fn check_multiples(&self, schemas: usize) -> Result<(), FormError> {
        let product = self.multiples.iter().fold(1_u64, |product, &multiple| product.saturating_mul(multiple.max(1)));
        if schemas > 1 { at_most("units of combined `multipleOf`", product, self.limits.multiples) } else { Ok(()) }
    }
}
