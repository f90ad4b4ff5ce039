mod damage;

use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use tempfile::TempDir;

use super::*;
use crate::schedule::toy::{BLOCK, Toy};
use crate::schedule::{Chosen, End, Job, JobError, Likelihood, Options, Output, Party, Scheduler, Settings};

const VOCAB: usize = 61;
const POSITIONS: usize = 64;

#[derive(Clone, Default)]
struct Ear(Arc<Mutex<Vec<u32>>>);

impl Output for Ear {
    fn begin(&mut self, _: usize, _: Vec<Likelihood>) {}

    fn token(&mut self, chosen: Chosen) -> ControlFlow<()> {
        self.0.lock().unwrap().push(chosen.token);
        ControlFlow::Continue(())
    }

    fn end(self: Box<Self>, end: Result<End, JobError>) {
        end.unwrap();
    }

    fn is_gone(&self) -> bool {
        false
    }
}

fn room(host_bytes: u64, files: Option<(&Path, u64)>) -> Room {
    Room { host_bytes, files: files.map(|(folder, most)| (folder.to_owned(), most)) }
}

fn scheduler(blocks: usize, slots: usize, room: &Room) -> Scheduler<Toy> {
    let toy = Toy::sized(blocks, slots, (VOCAB, POSITIONS)).with_memory();
    let offload = Offload::new(toy.cache_layout(), room).unwrap();
    let options = Options { running: 3, step_tokens: 0, prefix_cache: true, speculate: 0 };
    Scheduler::new(toy, options).with_offload(offload)
}

fn prompts(count: usize) -> Vec<Vec<u32>> {
    let token = |i: usize, j: usize| ((i * 37 + j * 11 + i * j) % VOCAB) as u32;
    // Some begin alike, in the middle of a block and at its end.
    (0..count).map(|i| (0..9 + i % 20).map(|j| if j < i % 13 { j as u32 } else { token(i, j) }).collect()).collect()
}

fn ask(scheduler: &mut Scheduler<Toy>, prompts: &[Vec<u32>], party: &Party) -> Vec<Vec<u32>> {
    let mut ears = vec![];
    for prompt in prompts {
        let ear = Ear::default();
        let settings = Settings { max_new: 7, ..Settings::default() };
        let (prompt, party, output) = (prompt.clone(), party.clone(), Box::new(ear.clone()));
        scheduler.add(vec![Job { prompt, party, images: None, settings, guide: None, output }]);
        ears.push(ear);
        while !scheduler.is_idle() && ears.len() % 4 == 0 {
            scheduler.step();
        }
    }
    while !scheduler.is_idle() {
        scheduler.step();
    }
    assert_eq!(scheduler.down(), None);
    ears.iter().map(|ear| ear.0.lock().unwrap().clone()).collect()
}

/// The answers of an engine with room for all.
fn expect(prompts: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let toy = Toy::sized(2000, 0, (VOCAB, POSITIONS));
    let options = Options { running: 1, step_tokens: 0, prefix_cache: false, speculate: 0 };
    ask(&mut Scheduler::new(toy, options), prompts, &Party::default())
}

fn counts(scheduler: &Scheduler<Toy>) -> Counts {
    scheduler.offloaded().unwrap()
}

/// Files of pieces in a folder.
fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries.filter(|path| path.extension().is_some_and(|ending| ending == "piece")).collect();
    files.sort();
    files
}

/// Wherever pieces go, answers are those of an engine that computes all, and a second round gets
/// most of its prompts back.
#[test]
fn answers_are_those_that_are_computed() {
    let prompts = prompts(60);
    let expect = expect(&prompts);
    for slots in [0, 24] {
        for (host, on_disk) in [(1 << 20, 0), (0, 1 << 30), (20_000, 1 << 30), (20_000, 0), (20_000, 200_000)] {
            let folder = TempDir::new().unwrap();
            let room = room(host, (on_disk > 0).then_some((folder.path(), on_disk)));
            let mut scheduler = scheduler(24, slots, &room);
            let mut cached = vec![];
            for round in 0..3 {
                let before = scheduler.counts();
                assert_eq!(
                    ask(&mut scheduler, &prompts, &Party::default()),
                    expect,
                    "{slots} {host} {on_disk} {round}"
                );
                let now = scheduler.counts();
                cached.push(
                    (now.cached_tokens - before.cached_tokens) * 100 / (now.prompt_tokens - before.prompt_tokens),
                );
                let counts = counts(&scheduler);
                assert!(counts.host_bytes <= host && counts.file_bytes <= on_disk, "{counts:?}");
            }
            let counts = counts(&scheduler);
            println!("{slots} slots, {host} of memory, {on_disk} of files: {cached:?} % {counts:?}");
            let has_all = host == 1 << 20 || on_disk == 1 << 30;
            if slots == 0 && has_all {
                assert!(cached[1] >= 90 && cached[2] >= 90, "{cached:?}");
            }
            // In a place that is too small little may be left of what is asked in turn.
            assert!(counts.tokens > 0 || !has_all, "{counts:?}");
            assert!(counts.host_hits > 0 || host < 1 << 20, "{counts:?}");
            assert!(counts.file_hits > 0 || on_disk < 1 << 30, "{counts:?}");
            assert_eq!(counts.damaged, 0);
        }
    }
}

/// What is in files, and at the end also what was in memory and in the engine, is there after a
/// restart.
#[test]
fn a_restart_finds_files() {
    let prompts = prompts(40);
    let expect = expect(&prompts);
    for slots in [0, 24] {
        let folder = TempDir::new().unwrap();
        let place = folder.path().join("a/b");
        let room = room(1 << 20, Some((&place, 1 << 30)));
        let mut first = scheduler(200, slots, &room);
        assert_eq!(ask(&mut first, &prompts, &Party::default()), expect);
        first.save();
        drop(first);
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&place), 0o700);
        assert!(!files(&place).is_empty() && files(&place).iter().all(|file| mode(file) == 0o600));
        // It takes nothing that it does not know.
        std::fs::write(place.join("notes.txt"), "mine").unwrap();
        let mut second = scheduler(200, slots, &room);
        assert_eq!(ask(&mut second, &prompts, &Party::default()), expect);
        let (counts, all) = (counts(&second), second.counts());
        assert!(counts.file_hits > 0 && counts.damaged == 0, "{counts:?}");
        if slots == 0 {
            assert!(all.cached_tokens * 10 >= all.prompt_tokens * 9, "{all:?}");
        }
        drop(second);
        // Another layout's are gone, and what is somebody's own is not.
        let toy = Toy::sized(200, slots, (VOCAB, POSITIONS));
        let other = Offload::new(Layout { key: [8; 32], ..toy.cache_layout() }, &room).unwrap();
        assert_eq!((other.counts().file_bytes, files(&place).len()), (0, 0));
        assert_eq!(std::fs::read_to_string(place.join("notes.txt")).unwrap(), "mine");
    }
}

/// No salt and no adapter gets what another has left.
#[test]
fn parties_have_pieces_of_their_own() {
    let (folder, prompts) = (TempDir::new().unwrap(), prompts(12));
    let room = room(0, Some((folder.path(), 1 << 30)));
    let mut scheduler = scheduler(24, 0, &room);
    let party = |salt: Option<&str>| Party { adapter: None, salt: salt.map(Into::into) };
    for salt in [None, Some("a"), Some("b"), Some("")] {
        ask(&mut scheduler, &prompts[..6], &party(salt));
        // Whatever is left in the engine goes.
        scheduler.save();
        let before = counts(&scheduler);
        ask(&mut scheduler, &prompts[..6], &party(salt));
        scheduler.save();
        assert!(counts(&scheduler).tokens > before.tokens, "{salt:?}");
    }
    let (spots, block) = (["", "a", "b"], vec![1; BLOCK]);
    let toy = Toy::sized(24, 0, (VOCAB, POSITIONS)).with_memory();
    drop(scheduler);
    let offload = Offload::new(toy.cache_layout(), &room).unwrap();
    let mut all: Vec<Chain> = vec![];
    for adapter in [None, Some(0), Some(1)] {
        for salt in [None].into_iter().chain(spots.map(Some)) {
            let party = Party { adapter, salt: salt.map(Into::into) };
            all.extend(offload.path(Owned { party: &party, tokens: &block }).chains);
        }
    }
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!((all.len(), count), (24, 24));
}

/// A salt that asks first what another has left computes all of it.
#[test]
fn another_salt_computes_all() {
    let prompts = prompts(6);
    let mut scheduler = scheduler(24, 0, &room(1 << 20, None));
    for (salt, hits) in [("a", false), ("b", false), ("a", true)] {
        let before = counts(&scheduler).tokens;
        ask(&mut scheduler, &prompts, &Party { adapter: None, salt: Some(salt.into()) });
        scheduler.save();
        assert_eq!(counts(&scheduler).tokens > before, hits, "{salt}");
    }
}

#[test]
fn folders_at_fault_are_refused() {
    let folder = TempDir::new().unwrap();
    let layout = Toy::new(8, 0).cache_layout();
    let open = |path: &Path| Offload::new(layout.clone(), &room(0, Some((path, 1 << 20))));
    let said = |path: &Path| open(path).unwrap_err().to_string().replace(&folder.path().display().to_string(), "F");
    let first = open(folder.path()).unwrap();
    assert_eq!(said(folder.path()), "F is the cache of another server that runs");
    drop(first);
    assert!(open(folder.path()).is_ok());
    let shared = folder.path().join("shared");
    std::fs::create_dir(&shared).unwrap();
    std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(said(&shared), "F/shared may be written to by others (mode 777); `chmod go-w` takes that back");
    std::fs::write(folder.path().join("file"), "").unwrap();
    assert!(said(&folder.path().join("file")).starts_with("cannot make F/file: "));
}
