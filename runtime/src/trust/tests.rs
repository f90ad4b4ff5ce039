use super::*;
use std::os::unix::fs::PermissionsExt;

fn fingerprint(digit: char) -> Fingerprint {
    digit.to_string().repeat(64).parse().unwrap()
}

#[test]
fn the_list_is_where_the_variables_say() {
    let place = |config: Option<&str>, home: Option<&str>| {
        place(config.map(Into::into), home.map(Into::into)).map_err(|error| error.to_string())
    };
    assert_eq!(place(Some("/etc/me"), Some("/home/me")), Ok("/etc/me/atomc/trusted".into()));
    assert_eq!(place(Some(""), Some("/home/me")), Ok("/home/me/.config/atomc/trusted".into()));
    assert_eq!(
        place(None, None).unwrap_err(),
        "the list of trusted artifacts has no place: neither XDG_CONFIG_HOME nor HOME is set"
    );
    let relative = place(Some("me"), Some("/home/me")).unwrap_err();
    assert!(relative.ends_with("XDG_CONFIG_HOME is `me`, which is no absolute path"), "{relative}");
}

#[test]
fn what_is_added_is_there_until_it_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config/atomc/trusted");
    assert_eq!(TrustList::read(&path).unwrap(), TrustList::default());
    for digit in ['b', 'a', 'b'] {
        TrustList::add(&path, fingerprint(digit), "Qwen3ForCausalLM /m.atomc").unwrap();
    }
    let lines = |text: &str| text.lines().map(|line| (line.as_bytes()[0], line.len())).collect::<Vec<_>>();
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(lines(&text), [(b'a', 90), (b'b', 90)], "sorted, and each once");
    let list = TrustList::read(&path).unwrap();
    assert!(list.has(fingerprint('a')) && !list.has(fingerprint('c')));
    assert_eq!(list.entries().next(), Some((fingerprint('a'), "Qwen3ForCausalLM /m.atomc")));
    assert!(TrustList::remove(&path, fingerprint('a')).unwrap());
    assert!(!TrustList::remove(&path, fingerprint('a')).unwrap());
    assert!(!TrustList::read(&path).unwrap().has(fingerprint('a')));
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
}

#[test]
fn text_of_an_artifact_is_no_entry() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trusted");
    let about = format!("Llama\n{} Llama\r\x1b[2J", fingerprint('e'));
    TrustList::add(&path, fingerprint('a'), &about).unwrap();
    let list = TrustList::read(&path).unwrap();
    assert!(list.has(fingerprint('a')) && !list.has(fingerprint('e')));
    assert!(!std::fs::read_to_string(&path).unwrap().contains('\x1b'));
}

#[test]
fn nothing_is_lost_when_several_write() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trusted");
    let digits = ['0', '1', '2', '3', '4', '5', '6', '7'];
    std::thread::scope(|scope| {
        for digit in digits {
            let path = &path;
            scope.spawn(move || TrustList::add(path, fingerprint(digit), "").unwrap());
        }
    });
    assert_eq!(TrustList::read(&path).unwrap().entries().count(), digits.len());
}

#[test]
fn a_list_that_is_none_is_refused_by_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trusted");
    std::fs::write(&path, format!("{}\n\nyes please\n", fingerprint('a'))).unwrap();
    for error in [TrustList::read(&path).unwrap_err(), TrustList::add(&path, fingerprint('b'), "").unwrap_err()] {
        assert!(error.to_string().contains("trusted: line 3 does not begin with a fingerprint"), "{error}");
    }
    assert!(matches!(TrustList::read(dir.path()), Err(TrustError::Io { action: "read", .. })));
}
