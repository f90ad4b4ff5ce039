//! Prompts with images through the built binary: answers are those of transformers
//! (`tests/golden/images.py`), and what anybody may send is refused by name.
#[allow(dead_code, reason = "other tests need more of it")]
mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use common::Bench;
use serde_json::{Value, json};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/images");
/// Images, with what transformers' processor makes of them.
const IMAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../server/src/images");

fn model(case: &str) -> String {
    format!("{GOLDEN}/{case}")
}

fn image(name: &str) -> String {
    format!("{IMAGES}/{name}")
}

/// What transformers answers.
fn answers(case: &str) -> Vec<Value> {
    let text = std::fs::read(Path::new(&model(case)).join("golden.json")).expect("golden.json");
    let golden: Value = serde_json::from_slice(&text).expect("JSON");
    golden["answers"].as_array().expect("answers").clone()
}

/// The question of an answer, in the words of the tokenizer.
fn question(answer: &Value) -> String {
    words(&answer["asked"])
}

fn words(tokens: &Value) -> String {
    let words = tokens.as_array().expect("tokens").iter().map(|token| format!("t{token}"));
    words.collect::<Vec<_>>().join(" ")
}

impl Bench {
    fn compiled(&self, case: &str) {
        let args = ["--dtype", "f32", "--context", "256", "--decode", "1", "--prefill", "32", "--patches", "256"];
        self.succeed(&[&["compile", &model(case), "--tower", "-o", "m.atomc"], &args[..]].concat());
    }

    fn refused(&self, args: &[&str]) -> String {
        let out = self.run(args);
        let text = String::from_utf8(out.stderr).expect("UTF-8");
        assert_eq!(out.status.code(), Some(1), "{args:?}: {text}");
        assert!(!text.contains("panicked"), "{args:?}: {text}");
        text
    }
}

#[test]
fn answers_are_those_of_transformers() {
    for case in ["qwen3vl", "qwen3vlmoe", "3.5", "3.5-moe", "mistral3", "gemma3"] {
        let bench = Bench::empty();
        bench.compiled(case);
        for answer in answers(case) {
            let images: Vec<String> = answer["images"]
                .as_array()
                .expect("images")
                .iter()
                .map(|name| image(name.as_str().expect("a name")))
                .collect();
            let (weights, question) = (model(case), question(&answer));
            let mut args =
                vec!["run", "m.atomc", "--weights", &weights, "--prompt", &question, "--json", "--max-tokens", "6"];
            images.iter().for_each(|image| args.extend(["--image", image]));
            let made: Value = serde_json::from_str(&bench.succeed(&args)).expect("JSON");
            assert_eq!(made["tokens"], answer["tokens"], "{case}: {answer}");
            assert_eq!(made["prompt_tokens"], answer["prompt_tokens"], "{case}: {answer}");
        }
    }
}

#[test]
fn what_is_no_image_is_refused_by_name() {
    let bench = Bench::empty();
    bench.compiled("qwen3vl");
    let weights = model("qwen3vl");
    let ask = |prompt: &str, image: &str| {
        bench.refused(&["run", "m.atomc", "--weights", &weights, "--prompt", prompt, "--image", image])
    };
    bench.write("text.png", "no image");
    assert!(ask("t5", "text.png").contains("text.png: this is no PNG, JPEG or WebP file"));
    assert!(ask("t5", "none.png").contains("none.png"));
    let part = std::fs::read(image("larger.png")).expect("an image");
    bench.write("part.png", &part[..part.len() / 2]);
    assert!(ask("t5", "part.png").contains("part.png: the image cannot be decoded"));
    // The prompt says itself where images are, and has too many places.
    let both = "<|image_pad|> t5 <|image_pad|>";
    assert!(ask(both, &image("larger.png")).contains("places for 2 images, and 1 are given"));
    bench.succeed(&["compile", &weights, "--decode", "1", "--prefill", "32", "--context", "64", "-o", "text.atomc"]);
    let larger = image("larger.png");
    let args = ["run", "text.atomc", "--weights", &weights, "--prompt", "t5", "--image", &larger];
    let said = bench.refused(&args);
    assert!(said.contains("the artifact has no tower") && said.contains("--tower"), "{said}");
}

/// A server that is ended with the value.
struct Served {
    child: Child,
    address: String,
}

impl Served {
    fn new(bench: &Bench, case: &str, folder: Option<&Path>) -> Served {
        let weights = model(case);
        let mut command = bench.command(&["serve", "m.atomc", "--weights", &weights, "--port", "0", "--threads", "1"]);
        command.args(["--cache-tokens", "512", "--parallel", "2"]);
        folder.into_iter().for_each(|folder| _ = command.arg("--image-folder").arg(folder));
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("the binary runs");
        let mut lines = BufReader::new(child.stderr.take().expect("it was asked for")).lines().map_while(Result::ok);
        let line = lines.find(|line| line.contains("http://")).expect("an address");
        std::thread::spawn(move || lines.for_each(drop));
        let address = line.split_once("http://").and_then(|(_, rest)| rest.split_once('/')).expect("an address").0;
        Served { child, address: address.to_owned() }
    }

    /// The status of a chat, and the answer.
    fn chat(&self, content: &Value) -> (u16, Value) {
        let body = json!({ "messages": [{ "role": "user", "content": content }], "max_tokens": 6, "temperature": 0 });
        let body = body.to_string();
        let mut stream = TcpStream::connect(&self.address).expect("a connection");
        let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close";
        write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).expect("a request");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        let status = text.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        let body = text.split_once("\r\n\r\n").expect("a body").1;
        let start = body.find('{').expect("JSON");
        let end = body.rfind('}').expect("JSON");
        (status, serde_json::from_str(&body[start..=end]).expect("JSON"))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let group = |bytes: &[u8]| {
        let bits = bytes.iter().fold(0u32, |bits, &byte| bits << 8 | u32::from(byte)) << (8 * (3 - bytes.len()));
        (0..4)
            .map(move |i| if i > bytes.len() { '=' } else { char::from(DIGITS[(bits >> (18 - 6 * i)) as usize & 63]) })
            .collect::<String>()
    };
    bytes.chunks(3).map(group).collect()
}

fn address(name: &str) -> String {
    format!("data:image/png;base64,{}", base64(&std::fs::read(image(name)).expect("an image")))
}

fn part(url: &str) -> Value {
    json!({ "type": "image_url", "image_url": { "url": url } })
}

/// Answers to chats about images are those of transformers.
fn answered(served: &Served, case: &str) {
    for answer in answers(case) {
        let names = answer["images"].as_array().expect("images").iter().map(|name| name.as_str().expect("a name"));
        let mut content: Vec<Value> = names.map(|name| part(&address(name))).collect();
        content.push(json!({ "type": "text", "text": question(&answer) }));
        // The second time beginnings are shared.
        for _ in 0..2 {
            let (status, made) = served.chat(&content.clone().into());
            assert_eq!(status, 200, "{case}: {made}");
            assert_eq!(made["choices"][0]["message"]["content"], words(&answer["tokens"]), "{case}: {made}");
            assert_eq!(made["usage"]["prompt_tokens"], answer["prompt_tokens"], "{case}: {made}");
        }
    }
}

/// Families whose processors write more than a token for an image.
#[test]
fn chats_of_other_families_have_images() {
    for case in ["mistral3", "gemma3"] {
        let bench = Bench::empty();
        bench.compiled(case);
        answered(&Served::new(&bench, case, None), case);
    }
}

/// An image whose tokens see each other is in one step.
#[test]
fn steps_have_room_for_an_image() {
    let bench = Bench::empty();
    let args = ["compile", &model("gemma3"), "--tower", "-o", "m.atomc", "--dtype", "f32", "--context", "64"];
    let refused = |more: &[&str]| bench.refused(&[&args[..], more].concat());
    let told = refused(&["--decode", "1", "--prefill", "8", "--patches", "64"]);
    assert!(told.contains("--prefill: steps of 8 tokens: an image's 16 are in one step"), "{told}");
    let told = refused(&["--decode", "1", "--prefill", "32", "--patches", "48"]);
    assert!(told.contains("--patches: 48 patches: every image has 64"), "{told}");
}

#[test]
fn chats_have_images() {
    let bench = Bench::empty();
    bench.compiled("qwen3vl");
    let folder = bench.path("allowed");
    std::fs::create_dir(&folder).expect("a folder");
    std::fs::copy(image("larger.png"), folder.join("a.png")).expect("a copy");
    std::os::unix::fs::symlink(image("larger.png"), folder.join("out.png")).expect("a link");
    let served = Served::new(&bench, "qwen3vl", Some(&folder));
    answered(&served, "qwen3vl");
    let file = |name: &str| format!("file://{}", folder.join(name).display());
    let (one, first) = (answers("qwen3vl").remove(0), part(&file("a.png")));
    let (status, made) = served.chat(&json!([first, { "type": "text", "text": question(&one) }]));
    assert_eq!((status, &made["choices"][0]["message"]["content"]), (200, &json!(words(&one["tokens"]))), "{made}");
    refusals(&served, &[file("out.png"), format!("file://{}", image("larger.png")), file("../m.atomc"), file("none")]);
}

/// What no image is read of.
fn refusals(served: &Served, files: &[String]) {
    let bomb = base64(&bomb());
    let mut wrong = vec![
        ("http://localhost/a.png".to_owned(), "fetches none"),
        ("https://example.org/a.png".to_owned(), "fetches none"),
        ("data:text/plain;base64,aGVsbG8=".to_owned(), "image/png"),
        ("data:image/png,hello".to_owned(), "image/png"),
        ("data:image/png;base64,***".to_owned(), "no base64"),
        ("data:image/png;base64,aGVsbG8=".to_owned(), "no PNG, JPEG or WebP"),
        (format!("data:image/png;base64,{bomb}"), "are the most"),
    ];
    wrong.extend(files.iter().map(|file| (file.clone(), "below a folder")));
    for (url, told) in wrong {
        let (status, made) = served.chat(&json!([part(&url), { "type": "text", "text": "t5" }]));
        let (message, field) = (made["error"]["message"].as_str().expect("a message"), &made["error"]["param"]);
        assert_eq!((status, field), (400, &json!("messages[0].content[0].image_url")), "{made}");
        assert!(message.contains(told), "{url}: {message}");
    }
    // Text that says that there is an image.
    let (status, made) = served.chat(&json!("<|image_pad|> t5"));
    assert_eq!((status, &made["error"]["param"]), (400, &json!("messages")), "{made}");
    let many: Vec<Value> = (0..17).map(|_| part(&address("smaller.png"))).collect();
    let (status, made) = served.chat(&many.into());
    assert!(status == 400 && made["error"]["message"].as_str().is_some_and(|m| m.contains("at most 16")), "{made}");
    assert_eq!(served.chat(&json!("t5 t6")).0, 200);
}

/// A PNG whose header promises 60,000 by 60,000 pixels.
fn bomb() -> Vec<u8> {
    let mut bytes = std::fs::read(image("smaller.png")).expect("an image");
    for at in [16, 20] {
        bytes[at..at + 4].copy_from_slice(&60_000u32.to_be_bytes());
    }
    let step = |sum: u32| if sum & 1 == 1 { 0xedb8_8320 ^ (sum >> 1) } else { sum >> 1 };
    let sum = !bytes[12..29].iter().fold(!0, |sum, &byte| (0..8).fold(sum ^ u32::from(byte), |sum, _| step(sum)));
    bytes[29..33].copy_from_slice(&sum.to_be_bytes());
    bytes
}

/// A server without a tower refuses images as it did.
#[test]
fn servers_without_a_tower_refuse_images() {
    let bench = Bench::empty();
    let weights: PathBuf = model("qwen3vl").into();
    let args = ["--dtype", "f32", "--decode", "1", "--prefill", "32", "--context", "64", "-o", "m.atomc"];
    bench.succeed(&[&["compile", weights.to_str().expect("UTF-8")], &args[..]].concat());
    let served = Served::new(&bench, "qwen3vl", None);
    let (status, made) = served.chat(&json!([part(&address("smaller.png"))]));
    assert_eq!((status, &made["error"]["param"]), (400, &json!("messages[0].content")), "{made}");
}
