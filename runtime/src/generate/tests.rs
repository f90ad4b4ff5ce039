use super::*;
use crate::toy;

fn params(max_new: usize) -> Params {
    Params { max_new, ..Params::default() }
}

#[test]
fn streams_an_answer() {
    let mut engine = toy::engine(2, 0);
    let mut seen = Vec::new();
    let on_token = |token| {
        seen.push(token);
        ControlFlow::Continue(())
    };
    let answer = generate(&mut engine, &[5, 6, 7], &params(10), on_token).unwrap();
    assert_eq!((&answer.tokens, answer.finish), (&toy::answer(&[5, 6, 7], 10), Finish::Length));
    assert_eq!(seen, answer.tokens);
    assert_eq!(engine.cache().free_blocks(), engine.cache().blocks());
}

#[test]
fn answers_are_the_same_without_picks() {
    let mut engine = toy::engine_without_picks();
    let answer = generate(&mut engine, &[5, 6, 7], &params(10), |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(answer.tokens, toy::answer(&[5, 6, 7], 10));
}

#[test]
fn wrong_sampling_is_refused() {
    let mut engine = toy::engine(1, 0);
    let sampling = Sampling { temperature: f32::NAN, ..Sampling::default() };
    let wrong = Params { sampling, ..params(4) };
    let message = "temperature: NaN is not a finite number of at least 0";
    let one = generate(&mut engine, &[5], &wrong, |_| ControlFlow::Continue(()));
    assert_eq!(one.unwrap_err().to_string(), message);
    let all = generate_all(&mut engine, &[vec![5]], &wrong, 1, |_, _| ControlFlow::Continue(()));
    assert_eq!(all.unwrap_err().to_string(), message);
    assert_eq!(engine.cache().free_blocks(), engine.cache().blocks());
}

#[test]
fn a_token_without_a_finite_logit_is_not_chosen() {
    let mut engine = toy::engine(1, 0);
    let bias =
        toy::Bias((0..toy::VOCAB).flat_map(|i| [0.0, f32::INFINITY][usize::from(i == 40)].to_le_bytes()).collect());
    engine.load_weights(&bias, &|_, _| ()).unwrap();
    for temperature in [0.0, 1.0] {
        let sampling = Sampling { temperature, ..Sampling::default() };
        let params = Params { sampling, ..params(4) };
        let one = generate(&mut engine, &[5], &params, |_| ControlFlow::Continue(())).unwrap_err().to_string();
        assert!(one.contains("weight `head.bias` that it reads holds an infinite number"), "{one}");
        let all = generate_all(&mut engine, &[vec![5]], &params, 1, |_, _| ControlFlow::Continue(()));
        assert_eq!(all.unwrap_err().to_string(), one);
    }
    assert_eq!(engine.cache().free_blocks(), engine.cache().blocks());
}

#[test]
fn ends_where_it_should() {
    let mut engine = toy::engine(1, 0);
    let expect = toy::answer(&[5, 6, 7], 80);
    let go_on = |_| ControlFlow::Continue(());
    let stopping = Params { stop: vec![expect[4]], ..params(10) };
    let first = expect.iter().position(|token| *token == expect[4]).unwrap();
    let answer = generate(&mut engine, &[5, 6, 7], &stopping, go_on).unwrap();
    assert_eq!((&answer.tokens[..], answer.finish), (&expect[..first], Finish::Stop(expect[4])));
    let answer = generate(&mut engine, &[5, 6, 7], &params(80), go_on).unwrap();
    assert_eq!((&answer.tokens[..], answer.finish), (&expect[..62], Finish::Length));
    assert!(generate(&mut engine, &[5, 6, 7], &params(0), go_on).unwrap().tokens.is_empty());
    let answer = generate(&mut engine, &[5, 6, 7], &params(9), |_| ControlFlow::Break(())).unwrap();
    assert_eq!((&answer.tokens[..], answer.finish), (&expect[..1], Finish::Caller));
    assert!(generate(&mut engine, &[97], &params(9), go_on).is_err());
    assert_eq!(engine.cache().free_blocks(), engine.cache().blocks());
}

#[test]
fn many_prompts_get_the_answers_of_one() {
    // Room for some 100 tokens: prompts wait for blocks, not only for one of the places.
    let mut engine = toy::engine(2, 100);
    let prompts: Vec<Vec<u32>> = (0..23).map(|i| (0..1 + i * 5 % 17).map(|k| (k * 7 + i) % 97).collect()).collect();
    for width in [1, 4, 30] {
        let mut answers = vec![None; prompts.len()];
        let on_answer = |index: usize, answer: Answer| {
            assert!(answers[index].replace(answer).is_none());
            ControlFlow::Continue(())
        };
        let params = Params { stop: vec![96, 3], ..params(12) };
        generate_all(&mut engine, &prompts, &params, width, on_answer).unwrap();
        for (prompt, answer) in prompts.iter().zip(answers) {
            let alone = generate(&mut engine, prompt, &params, |_| ControlFlow::Continue(())).unwrap();
            assert_eq!(answer, Some(alone));
        }
        assert_eq!(engine.cache().free_blocks(), engine.cache().blocks());
    }
}

#[test]
fn many_prompts_can_be_abandoned() {
    let mut engine = toy::engine(1, 0);
    let prompts = vec![vec![1, 2, 3]; 5];
    let mut count = 0;
    let on_answer = |_, _| {
        count += 1;
        ControlFlow::Break(())
    };
    generate_all(&mut engine, &prompts, &params(4), 3, on_answer).unwrap();
    assert_eq!((count, engine.cache().free_blocks()), (1, engine.cache().blocks()));
    let too_long = vec![vec![1; 10], vec![1; 65]];
    generate_all(&mut engine, &too_long, &params(4), 3, |_, _| ControlFlow::Continue(())).unwrap_err();
    assert_eq!(engine.cache().free_blocks(), engine.cache().blocks());
}
