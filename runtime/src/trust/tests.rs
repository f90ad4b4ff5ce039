use super::*;
use std::os::unix::fs::{PermissionsExt, chown, symlink};

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

/// A list in a folder of dotfiles, to which the usual place leads.
#[test]
fn a_link_is_written_through() {
    let dir = tempfile::tempdir().unwrap();
    let (link, real) = (dir.path().join("atomc/trusted"), dir.path().join("dotfiles/list"));
    for folder in ["atomc", "dotfiles"] {
        DirBuilder::new().mode(0o700).create(dir.path().join(folder)).unwrap();
    }
    symlink(&real, &link).unwrap();
    TrustList::add(&link, fingerprint('a'), "").unwrap();
    TrustList::add(&link, fingerprint('b'), "").unwrap();
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(TrustList::read(&real).unwrap().entries().count(), 2);
}

/// Files of writers that were killed are those of every other writer, which the next one removes.
#[test]
fn killed_writers_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trusted");
    std::fs::write(dir.path().join(".atomc-1-0"), "half").unwrap();
    TrustList::add(&path, fingerprint('a'), "").unwrap();
    let mut names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["trusted", "trusted.lock"]);
}

#[test]
fn a_list_that_others_may_write_is_not_obeyed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("atomc/trusted");
    let folder = path.parent().unwrap();
    TrustList::add(&path, fingerprint('a'), "").unwrap();
    let set = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    let refused = |says: &str| {
        for error in [TrustList::read(&path).unwrap_err(), TrustList::add(&path, fingerprint('b'), "").unwrap_err()] {
            let said = error.to_string();
            assert!(said.contains("trusted is not obeyed: ") && said.contains(says), "{said}");
        }
    };
    for mode in [0o666, 0o620, 0o602] {
        set(&path, mode);
        refused(&format!("atomc/trusted (mode {mode:o}); `chmod go-w`"));
    }
    set(&path, 0o644);
    set(folder, 0o777);
    refused("atomc (mode 777)");
    set(folder, 0o755);
    assert!(TrustList::read(&path).unwrap().has(fingerprint('a')));
    // Only root can give files away.
    if chown(&path, Some(12345), None).is_ok() {
        refused("atomc/trusted belongs to user 12345");
    }
}
