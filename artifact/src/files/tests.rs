use super::*;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// Names in a folder, sorted.
fn names_in(dir: &Path) -> Vec<String> {
    let name = |entry: io::Result<std::fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<String> = std::fs::read_dir(dir).unwrap().map(name).collect();
    names.sort();
    names
}

fn pipe(path: &Path) {
    let path = c_string(path).unwrap();
    // SAFETY: a C string.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
}

/// Both ways of making a file, which have to come out alike.
fn both(path: &Path) -> [Draft; 2] {
    [Draft::begin(path, unnamed).unwrap(), Draft::begin(path, named).unwrap()]
}

#[test]
fn a_file_appears_when_it_is_whole() {
    let dir = folder();
    let path = dir.path().join("out");
    for (round, mut draft) in both(&path).into_iter().enumerate() {
        let before = std::fs::read(&path).ok();
        draft.file.write_all(&[round as u8; 3]).unwrap();
        assert_eq!(std::fs::read(&path).ok(), before);
        draft.publish().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), [round as u8; 3]);
    }
    assert_eq!(names_in(dir.path()), ["out"]);
    drop(both(&path));
    assert_eq!(names_in(dir.path()), ["out"]);
}

#[test]
fn a_file_has_the_mode_of_any_other() {
    let dir = folder();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode();
    let (plain, out) = (dir.path().join("plain"), dir.path().join("out"));
    std::fs::write(&plain, "").unwrap();
    for draft in both(&out) {
        draft.publish().unwrap();
        assert_eq!(mode(&out), mode(&plain));
        std::fs::set_permissions(&out, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
}

#[test]
fn links_stay() {
    let dir = folder();
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir(at("sub")).unwrap();
    symlink("sub/two", at("one")).unwrap();
    symlink("three", at("sub/two")).unwrap();
    for round in 0..2u8 {
        write(&at("one"), &[round]).unwrap();
        assert_eq!(std::fs::read(at("sub/three")).unwrap(), [round]);
        assert_eq!(std::fs::read_link(at("one")).unwrap(), Path::new("sub/two"));
    }
    assert_eq!(names_in(&at("sub")), ["three", "two"]);
    symlink("turn", at("round")).unwrap();
    symlink("round", at("turn")).unwrap();
    assert_eq!(write(&at("round"), b"x").unwrap_err().raw_os_error(), Some(libc::ELOOP));
}

#[test]
fn only_regular_files_are_replaced_and_read() {
    let dir = folder();
    let at = |name: &str| dir.path().join(name);
    pipe(&at("pipe"));
    symlink("pipe", at("link")).unwrap();
    let _socket = UnixListener::bind(at("socket")).unwrap();
    let refused = |path: PathBuf, what: &str| {
        let want = format!("{what}, not a regular file");
        assert_eq!(check(&path).unwrap_err().to_string(), want);
        assert_eq!(write(&path, b"x").unwrap_err().to_string(), want);
        assert_eq!(read(&path).unwrap_err().to_string(), want);
    };
    refused(at("pipe"), "a pipe");
    refused(at("link"), "a pipe");
    refused(at("socket"), "a socket");
    refused("/dev/null".into(), "a device");
    refused(dir.path().into(), "a folder");
    assert_eq!(names_in(dir.path()), ["link", "pipe", "socket"]);
    assert_eq!(check(&at("no/such")).unwrap_err().to_string(), "the folder does not exist");
    // What the place has become in the meantime counts too.
    let draft = Draft::new(&at("late")).unwrap();
    pipe(&at("late"));
    draft.publish().unwrap_err();
    assert_eq!(names_in(dir.path()), ["late", "link", "pipe", "socket"]);
}

#[test]
fn what_killed_writers_left_is_removed() {
    let dir = folder();
    let at = |name: &str| dir.path().join(name);
    for name in [".atomc-1-0", ".atomc-99999-7", ".atomc-1", ".atomc-1-x", ".atomc-a-1", "atomc-1-0"] {
        std::fs::write(at(name), "left").unwrap();
    }
    let live = Draft::begin(&at("live"), named).unwrap();
    write(&at("out"), b"x").unwrap();
    let mut want = [".atomc-1", ".atomc-1-x", ".atomc-a-1", "atomc-1-0", "out"].map(str::to_owned).to_vec();
    want.push(live.name.as_ref().unwrap().file_name().unwrap().to_str().unwrap().to_owned());
    want.sort();
    assert_eq!(names_in(dir.path()), want);
    live.publish().unwrap();
}

#[test]
fn writers_of_one_place_do_not_meet() {
    let dir = folder();
    let out = dir.path().join("out");
    std::thread::scope(|scope| {
        for round in 0..8u8 {
            let out = &out;
            scope.spawn(move || {
                for _ in 0..20 {
                    for mut draft in both(out) {
                        draft.file.write_all(&[round; 1000]).unwrap();
                        draft.publish().unwrap();
                    }
                }
            });
        }
    });
    let found = std::fs::read(&out).unwrap();
    assert!(found.len() == 1000 && found.iter().all(|&byte| byte == found[0]));
    assert_eq!(names_in(dir.path()), ["out"]);
}

#[test]
fn links_are_not_followed_where_no_user_chose_the_name() {
    let dir = folder();
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("mine"), "mine").unwrap();
    for (link, to) in [("to-mine", "mine"), ("to-nothing", "nothing")] {
        symlink(at(to), at(link)).unwrap();
        let said = write_beside(&at(link), b"theirs").unwrap_err().to_string();
        assert_eq!(said, "a link, which is not followed where the name was not chosen: remove it");
    }
    assert_eq!(std::fs::read(at("mine")).unwrap(), b"mine");
    write_beside(&at("mine"), b"new").unwrap();
    assert_eq!(std::fs::read(at("mine")).unwrap(), b"new");
    assert_eq!(names_in(dir.path()), ["mine", "to-mine", "to-nothing"]);
}

#[test]
fn names_of_folders_are_refused_before_anything_is_written() {
    let dir = folder();
    for name in ["out/", "out/.", "out/..", "out//", "."] {
        let said = check(&dir.path().join(name)).unwrap_err().to_string();
        assert!(
            ["the name of a folder, not of a file", "a folder, not a regular file"].contains(&&said[..]),
            "{name}: {said}"
        );
    }
    check(Path::new(".")).unwrap_err();
    check(&dir.path().join("out.")).unwrap();
    check(&dir.path().join("..out")).unwrap();
}
