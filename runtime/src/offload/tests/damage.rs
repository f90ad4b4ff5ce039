//! Files that are not as they were written.
use std::path::PathBuf;

use super::*;

/// What is done to each file.
type Spoil = fn(&Path, usize);

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    let at = at.min(bytes.len() - 1);
    bytes[at] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

fn cut(path: &Path, len: usize) {
    std::fs::File::options().write(true).open(path).unwrap().set_len(len as u64).unwrap();
}

fn swap_with_others(path: &Path, _: usize) {
    let folder = path.parent().unwrap();
    let other = files(folder).into_iter().find(|other| other != path).unwrap();
    std::fs::copy(other, path).unwrap();
}

/// A folder with the pieces of prompts, and the answers to these.
struct Filled {
    folder: TempDir,
    prompts: Vec<Vec<u32>>,
    expect: Vec<Vec<u32>>,
    slots: usize,
}

impl Filled {
    fn new(slots: usize) -> Filled {
        let (folder, prompts) = (TempDir::new().unwrap(), prompts(10));
        let mut first = scheduler(200, slots, &room(0, Some((folder.path(), 1 << 30))));
        let expect = ask(&mut first, &prompts, &Party::default());
        first.save();
        Filled { folder, expect, prompts, slots }
    }

    fn open(&self) -> Scheduler<Toy> {
        scheduler(200, self.slots, &room(0, Some((self.folder.path(), 1 << 30))))
    }

    fn asked(&self, mut scheduler: Scheduler<Toy>) -> Counts {
        assert_eq!(ask(&mut scheduler, &self.prompts, &Party::default()), self.expect);
        counts(&scheduler)
    }

    fn files(&self) -> Vec<PathBuf> {
        files(self.folder.path())
    }
}

/// Whatever part of a file differs by a bit, and wherever it ends, it is a miss and is removed:
/// where its header says so when the server starts, else when it is read.
#[test]
fn a_damaged_file_is_a_miss() {
    let header = [("magic", 0), ("layout", 8), ("place", 40), ("group", 72), ("count", 76), ("length", 80)];
    let mut faults: Vec<(&str, Spoil, usize, bool)> = vec![];
    faults.extend(header.map(|(name, at)| (name, flip as Spoil, at, true)));
    faults.extend([("high count", flip as Spoil, 79, true), ("high length", flip, 87, true)]);
    faults.extend([
        ("checksum", flip as Spoil, 88, false),
        ("tokens", flip, 120, true),
        ("bytes", flip, usize::MAX, false),
    ]);
    faults.extend([
        ("empty", cut as Spoil, 0, true),
        ("half a header", cut, 60, true),
        ("header alone", cut, 120, true),
    ]);
    faults.extend([("longer", cut as Spoil, 1 << 20, true), ("another's", swap_with_others, 0, true)]);
    for (what, spoil, at, is_seen_at_start) in faults {
        let filled = Filled::new(0);
        let before = filled.files();
        before.iter().for_each(|file| spoil(file, at));
        let opened = filled.open();
        let left = filled.files().len();
        // Of copies the one with the right name stays.
        let stays = if what == "another's" { 1 } else { 0 };
        assert_eq!(left, if is_seen_at_start { stays } else { before.len() }, "{what}");
        let found = filled.asked(opened);
        assert!(found.tokens == 0 || stays == 1, "{what}: {found:?}");
        assert_eq!(found.damaged > 0, !is_seen_at_start, "{what}: {found:?}");
    }
}

/// The same while the server runs, which has looked at headers already.
#[test]
fn damage_is_found_while_the_server_runs() {
    for slots in [0, 24] {
        for at in [0, 8, 40, 72, 76, 80, 88, 120, usize::MAX] {
            let filled = Filled::new(slots);
            let opened = filled.open();
            let all = filled.files();
            // Of every second file, so that some pieces of a sequence are whole.
            let spoiled: Vec<PathBuf> = all.into_iter().step_by(2).collect();
            for file in &spoiled {
                flip(file, at);
            }
            let found = filled.asked(opened);
            assert!(found.damaged > 0, "{found:?}");
            let left = spoiled.iter().filter(|file| file.exists()).count();
            assert_eq!(left + found.damaged as usize, spoiled.len(), "those that were read are gone: {found:?}");
        }
        let filled = Filled::new(slots);
        let opened = filled.open();
        filled.files().iter().for_each(|file| std::fs::remove_file(file).unwrap());
        let found = filled.asked(opened);
        assert!(found.damaged > 0 && found.tokens == 0, "{found:?}");
    }
}

/// Unfinished files, links and pipes with names of pieces are removed, and nothing behind them.
#[test]
fn strange_files_are_removed() {
    let filled = Filled::new(0);
    let whole = filled.files();
    let other = filled.folder.path().join("other");
    std::fs::rename(&whole[0], &other).unwrap();
    std::os::unix::fs::symlink(&other, &whole[0]).unwrap();
    std::fs::rename(&whole[1], whole[1].with_extension("new")).unwrap();
    let path = std::ffi::CString::new(whole[2].to_str().unwrap()).unwrap();
    std::fs::remove_file(&whole[2]).unwrap();
    // SAFETY: a C string that lives until the call returns.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    let opened = filled.open();
    assert_eq!(filled.files(), whole[3..]);
    assert!(other.exists() && !whole[1].with_extension("new").exists());
    filled.asked(opened);
}

/// Of files that are too many the oldest are removed, also when a server starts.
#[test]
fn files_stay_within_their_bound() {
    let filled = Filled::new(0);
    let (all, most) = (filled.files().len() as u64, 3 * 4096);
    assert!(all > 10);
    let room = room(0, Some((filled.folder.path(), most)));
    let mut opened = scheduler(24, 0, &room);
    assert_eq!(counts(&opened).file_bytes, most);
    for _ in 0..2 {
        assert_eq!(ask(&mut opened, &filled.prompts, &Party::default()), filled.expect);
        assert!(counts(&opened).file_bytes <= most);
    }
    drop(opened);
    assert_eq!(filled.files().len(), 3);
}
