//! Faults of JSON, in JSON's words and not in those of the program that reads it.

/// Names of types in messages of the JSON reader, and words for clients.
const TYPES: [(&str, &str); 14] = [
    ("map", "an object"),
    ("sequence", "a list"),
    ("a sequence", "a list"),
    ("a map", "an object"),
    ("a boolean", "true or false"),
    ("string", "a text"),
    ("a string", "a text"),
    ("a borrowed string", "a text"),
    ("null", "null"),
    ("unit", "null"),
    ("f32", "a number"),
    ("f64", "a number"),
    ("i64", "a whole number"),
    ("u32", "a whole number that is not below 0"),
];

/// A message of serde's, told for a field or for the whole of a request.
pub fn plain(message: &str, is_field: bool) -> String {
    let (text, place) = match message.rfind(" at line ") {
        Some(at) => message.split_at(at),
        None => (message, ""),
    };
    // If the message has a field, the position in the text adds nothing.
    let place = if is_field { "" } else { place };
    let told = ["invalid type: ", "invalid value: "].iter().find_map(|head| text.strip_prefix(head));
    match told.and_then(|rest| rest.split_once(", expected ")) {
        Some((given, wanted)) => format!("is {}, and must be {}{place}", given_type(given), wanted_type(wanted)),
        None => format!("{text}{place}"),
    }
}

fn given_type(given: &str) -> String {
    let (kind, value) = given.split_once(' ').unwrap_or((given, ""));
    match kind {
        "string" | "integer" | "boolean" => value.to_owned(),
        "floating" => value.trim_start_matches("point ").to_owned(),
        _ => renamed(given).unwrap_or(given).to_owned(),
    }
}

fn wanted_type(wanted: &str) -> String {
    let is_object = wanted.starts_with("struct ") || wanted.starts_with("internally tagged");
    match renamed(wanted) {
        Some(name) => name.to_owned(),
        None if is_object => "an object".into(),
        None if ["usize", "u64"].contains(&wanted) => "a whole number that is not below 0".into(),
        None => wanted.to_owned(),
    }
}

fn renamed(name: &str) -> Option<&'static str> {
    TYPES.iter().find_map(|&(known, told)| (known == name).then_some(told))
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn no_word_is_the_programs() {
        for (told, expect) in [
            ("invalid type: map, expected a string at line 1 column 9", "is an object, and must be a text"),
            ("invalid type: string \"hot\", expected f32", "is \"hot\", and must be a number"),
            ("invalid value: integer `-1`, expected usize", "is `-1`, and must be a whole number that is not below 0"),
            (
                "invalid type: floating point `1.5`, expected u32",
                "is `1.5`, and must be a whole number that is not below 0",
            ),
            ("invalid type: sequence, expected struct Chat", "is a list, and must be an object"),
            ("a text, or a list of texts", "a text, or a list of texts"),
        ] {
            assert_eq!(plain(told, true), expect);
        }
        assert_eq!(plain("expected `,` at line 3 column 1", false), "expected `,` at line 3 column 1");
    }
}
