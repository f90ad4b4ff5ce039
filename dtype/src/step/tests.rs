use super::*;

fn value(shape: &[usize], elements: Elements) -> Value {
    Value::new(shape.to_vec(), elements, Stored::Tensor)
}

#[test]
fn lines_name_weights() {
    let line = |step: Step, of: &[&str]| step.text(&of.iter().map(|&of| of.to_owned()).collect::<Vec<_>>());
    assert_eq!(line(Step::Concat { axis: 0 }, &["a", "b"]), "concat(a, b)");
    assert_eq!(line(Step::Concat { axis: 1 }, &["a", "b"]), "concat(a, b, axis 1)");
    assert_eq!(line(Step::Slice { axis: 1, start: 2, len: 3 }, &["a"]), "slice(a, axis 1, 2..5)");
    assert_eq!(line(Step::Every { axis: 1, step: 2, start: 1 }, &["a"]), "every(a, axis 1, 2 from 1)");
    assert_eq!(line(Step::Pad { axis: 0, len: 8 }, &["a"]), "pad(a, axis 0, 8)");
    assert_eq!(line(Step::Repeat { axis: 1, times: 3 }, &["a"]), "repeat(a, axis 1, 3 times)");
    assert_eq!(line(Step::Shard { axis: 0, parts: 2 }, &["a"]), "shard(a, axis 0, 1 of 2)");
    assert_eq!(line(Step::Offset { by: 1.0 }, &["a"]), "offset(a, 1.0)");
    assert_eq!(line(Step::Transpose {}, &["a"]), "transpose(a)");
    assert_eq!(line(Step::View { shape: vec![2, 3] }, &["a"]), "view(a, [2, 3])");
    let unpack = Step::Unpack { from: DType::I32, to: DType::U4, axis: 1, len: 15, order: Order::Awq };
    assert_eq!(line(unpack, &["a"]), "unpack(a, 15 u4 along axis 1, awq)");
    assert_eq!(line(Step::Shift { by: -8, to: DType::I4 }, &["a"]), "shift(a, -8, i4)");
    let by = Encode { codes: DType::F4E2M1, scales: DType::E8M0, block: [1, 32] };
    let encode = Step::Encode { by, made: Encoded::Codes };
    assert_eq!(line(encode, &["a"]), "encode(a, codes of f4e2m1 by Block { rows: 1, cols: 32 })");
    assert_eq!(line(Step::Expect { is: Fact::All(8) }, &["a", "b"]), "expect(a, b all(8))");
    assert_eq!(line(Step::Times { over: false }, &["a", "b"]), "times(a, b)");
    assert_eq!(line(Step::Times { over: true }, &["a", "b"]), "times(a, b, over)");
    assert_eq!(line(Step::Sort { bits: 3, axis: 0 }, &["a", "b"]), "sort(a, b, 3 bits along axis 0)");
    assert_eq!(line(Step::Places {}, &["a"]), "places(a)");
    assert_eq!(line(Step::Factor { by: 0.5 }, &["a"]), "factor(a, 0.5)");
    let book = Step::Codebook { shape: vec![2, 3], to: DType::F32 };
    assert_eq!(line(book, &["a", "s", "b", "t"]), "codebook(a, s, b, t, [2, 3])");
    let dequantise = Step::Dequantise { block: [32, 1], to: DType::F32 };
    assert_eq!(line(dequantise, &["a", "s"]), "dequantise(a, s, blocks of 32 by 1)");
}

/// Words that are sorted, or narrower than their codes, are whole tensors.
#[test]
fn sorted_and_narrow_words_are_those_of_a_tensor() {
    let (stored, fault) =
        (|shape: &[usize]| value(shape, Elements::Stored), |made: Made<usize>| made.expect_err("a fault").detail);
    let sort = |bits| Step::Sort { bits, axis: 0 };
    let sorted = sort(3).value(vec![stored(&[9, 4]), stored(&[96])]).expect("words");
    assert_eq!((sorted.shape.clone(), sorted.elements), (vec![9, 4], Elements::Made(DType::I32)));
    let unpack = Step::Unpack { from: DType::I32, to: DType::U4, axis: 0, len: 96, order: Order::Threes };
    assert_eq!(unpack.value(vec![sorted.clone()]).expect("codes").shape, [96, 4]);
    assert_eq!(fault(sort(5).value(vec![stored(&[9, 4]), stored(&[96])])), "no codes have 5 bits");
    assert_eq!(
        fault(sort(4).value(vec![stored(&[9, 4]), stored(&[96])])),
        "96 codes of 4 bits do not lie in axis 0 of [9, 4]"
    );
    let part = Step::Slice { axis: 0, start: 0, len: 9 }.value(vec![stored(&[12, 4])]).expect("a part");
    assert_eq!(fault(unpack.value(vec![part.clone()])), "only of words as they are stored");
    assert_eq!(fault(sort(3).value(vec![part, stored(&[96])])), "only words of i32 as they are stored are sorted");
    assert_eq!(
        fault(Step::View { shape: vec![3, 3, 4] }.value(vec![sorted])),
        "words that were sorted keep their shape"
    );
    assert_eq!(Step::Places {}.value(vec![stored(&[96])]).expect("places").elements, Elements::Made(DType::F32));
    assert!(Step::Places {}.value(vec![stored(&[2, 3])]).is_err());
}

/// A text is no part of a weight, and of a book's tensors none may be missing a number.
#[test]
fn books_have_all_their_tensors() {
    let stored = |shape: &[usize]| value(shape, Elements::Stored);
    let book = Step::Codebook { shape: vec![4, 40], to: DType::F32 };
    let text = || value(&[TEXT], Elements::Text);
    let made = book.value(vec![stored(&[80, 1]), stored(&[3]), stored(&[16]), text()]).expect("floats");
    assert_eq!((made.shape, made.elements), (vec![4, 40], Elements::Made(DType::F32)));
    let nested = Step::NestedCodebook { shape: vec![4, 40], to: DType::F32 };
    let all = || vec![stored(&[80, 1]), stored(&[3]), stored(&[16]), text(), stored(&[1]), stored(&[256])];
    assert!(nested.value(all()).is_ok());
    for at in 0..6 {
        let mut wrong = all();
        wrong[at] = stored(&[7, 7]);
        assert!(nested.value(wrong).is_err(), "{at}");
    }
    let told = Step::Expect { is: Fact::All(0) }.value(vec![stored(&[4]), text()]);
    assert_eq!(told.expect_err("a fault").detail, "these are no integers");
    assert!(
        Step::Factor { by: 0.0 }.value(vec![stored(&[4])]).is_err()
            && Step::Factor { by: 2.0 }.value(vec![text()]).is_err()
    );
}

#[test]
fn places_name_operands() {
    assert_eq!(Step::Concat { axis: 0 }.place(3), ".concat.parts[3]");
    assert_eq!(Step::Transpose {}.place(0), ".transpose.of");
    let scaled = Step::Scaled { block: [1, 1] };
    assert_eq!([0, 1, 2].map(|operand| scaled.place(operand)), [".scaled.of", ".scaled.scale", ".scaled.zero"]);
}

/// A step with fewer operands than it has is a fault, and no panic.
#[test]
fn operands_are_counted() {
    let fault = |step: Step, of| step.value::<usize>(of).unwrap_err();
    assert_eq!(fault(Step::Transpose {}, vec![]).detail, "too few operands");
    assert_eq!(fault(Step::Concat { axis: 0 }, vec![]).detail, "concat of nothing");
    let one = value(&[2, 2], Elements::Codes(DType::U4));
    assert_eq!(fault(Step::Scaled { block: [1, 1] }, vec![one]).detail, "too few operands");
    let deep = value(&[1; 9], Elements::Stored);
    assert!(fault(Step::Transpose {}, vec![deep]).detail.ends_with("is not one to 5 sizes of at least 1"));
}

/// What a plan knows of its past, and a graph of its types.
#[test]
fn types_follow() {
    let unpack = |to| Step::Unpack { from: DType::I32, to, axis: 1, len: 15, order: Order::Plain };
    for words in [Elements::Stored, Elements::Of(DType::I32)] {
        let codes = unpack(DType::U4).value(vec![value(&[4, 2], words)]).unwrap();
        assert_eq!((codes.shape.as_slice(), codes.elements), (&[4, 15][..], Elements::Codes(DType::U4)));
    }
    let other = unpack(DType::U4).value(vec![value(&[4, 2], Elements::Of(DType::U8))]).unwrap_err();
    assert_eq!((&*other.at, &*other.detail), (".unpack.of", "these are other words"));
    let by = Encode { codes: DType::F4E2M1, scales: DType::E8M0, block: [1, 32] };
    let made = Step::Encode { by, made: Encoded::Codes }.value(vec![value(&[4, 33], Elements::Stored)]).unwrap();
    assert_eq!((made.shape.as_slice(), made.elements), (&[4, 17][..], Elements::Made(DType::U8)));
}

/// Numbers go with scales as they are stored: one with a tensor, as many with a stack.
#[test]
fn scales_have_a_number_of_each_tensor() {
    let times = |of: Value, by: Value| Step::Times { over: true }.value(vec![of, by]);
    let stack = |shape: &[usize], count| Value::new(shape.to_vec(), Elements::Stored, Stored::Stack(count));
    let one = |shape: &[usize]| value(shape, Elements::Stored);
    let made = times(one(&[4, 3]), one(&[1])).expect("f32");
    assert_eq!((made.shape, made.elements), (vec![4, 3], Elements::Made(DType::F32)));
    assert_eq!(times(stack(&[2, 4, 3], 2), stack(&[2, 1], 2)).expect("f32").shape, [2, 4, 3]);
    let refused = [
        (one(&[4, 3]), one(&[4]), "times.by"),
        (stack(&[2, 4, 3], 2), one(&[2, 1]), "times.by"),
        (one(&[2, 4, 3]), one(&[2, 1]), "times.of"),
        (value(&[4, 3], Elements::Codes(DType::U8)), one(&[1]), "times.of"),
        (one(&[4, 3]), value(&[1], Elements::Codes(DType::U8)), "times.by"),
    ];
    for (of, by, at) in refused {
        assert_eq!(times(of, by).expect_err("a fault").at, format!(".{at}"));
    }
}
