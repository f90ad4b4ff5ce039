//! Dumps of `atomc verify`, run again from the files alone as docs/dumps.md describes them, by
//! nothing that wrote them.
//!
//! Every buffer ends at the end of its page, except for the bytes that kernels may read past it,
//! and the next page cannot be touched: a kernel that reads bytes that the files lack ends the
//! test.
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr;

use safetensors::SafeTensors;
use serde_json::Value;
use tempfile::TempDir;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/llama2");

const PAGE: usize = 4096;

/// Bytes of a result before a launch.
const POISON: u8 = 255;

/// A folder with the dump of a small model's kernels.
fn dumped(target: &str, device: &str) -> TempDir {
    let dir = TempDir::new().expect("a folder");
    let run = |args: &[&str]| {
        let mut atomc = Command::new(env!("CARGO_BIN_EXE_atomc"));
        let atomc = atomc.args(args).current_dir(dir.path()).env("XDG_CONFIG_HOME", dir.path().join("config"));
        let out = atomc.output().expect("the binary runs");
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    };
    let small = ["--context", "96", "--decode", "2", "--prefill", "32", "--target", target];
    run(&[&["compile", MODEL, "-o", "m.atomc", "--no-trust"], &small[..]].concat());
    run(&["verify", "m.atomc", "--device", device, "--threads", "1", "--dump", "dump"]);
    dir
}

/// Memory that may be used up to `slack` bytes past its end, and no further.
struct Guarded {
    map: *mut u8,
    mapped: usize,
    start: *mut u8,
    len: usize,
}

impl Guarded {
    /// `len` bytes of one value, at a multiple of `align`, followed by `align` bytes that may be
    /// read.
    fn new(len: usize, value: u8, align: usize) -> Guarded {
        let used = (len + align).next_multiple_of(PAGE);
        let (mapped, protection) = (used + PAGE, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping of our own. Its last page is locked.
        let map = unsafe {
            let map = libc::mmap(ptr::null_mut(), mapped, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
            assert!(map != libc::MAP_FAILED, "no memory");
            assert_eq!(libc::mprotect(map.wrapping_byte_add(used), PAGE, libc::PROT_NONE), 0);
            map.cast::<u8>()
        };
        // A page is a multiple of the alignment of buffers.
        let start = map.wrapping_add((used - align - len) / align * align);
        // SAFETY: it lies in the part that is not locked.
        unsafe { ptr::write_bytes(start, value, len + align) };
        Guarded { map, mapped, start, len }
    }

    fn holding(bytes: &[u8], align: usize) -> Guarded {
        let memory = Guarded::new(bytes.len(), POISON, align);
        // SAFETY: the memory has this many bytes.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), memory.start, bytes.len()) };
        memory
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: mapped and written.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the mapping, once.
        unsafe { libc::munmap(self.map.cast(), self.mapped) };
    }
}

/// One launch as the files say it.
struct Dump {
    about: Value,
    before: Vec<u8>,
    after: Vec<u8>,
    align: usize,
}

/// The memory of a launch: of each argument, or of its lists; and the memory that each argument
/// points to.
#[derive(Default)]
struct Launch {
    memory: Vec<Guarded>,
    pointers: Vec<*mut u8>,
}

fn number(value: &Value) -> usize {
    value.as_u64().expect("a number") as usize
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

impl Dump {
    fn open(dir: &Path, json: &Path) -> Dump {
        let about: Value = serde_json::from_slice(&std::fs::read(json).expect("a file")).expect("JSON");
        let read = |key: &str| std::fs::read(dir.join(text(&about[key]))).expect("a file");
        Dump { before: read("before"), after: read("after"), align: number(&about["layout"]["align"]), about }
    }

    fn arguments(&self) -> &[Value] {
        self.about["arguments"].as_array().expect("a list")
    }

    fn variant(&self, name: &str) -> &Value {
        let all = self.about["variants"].as_array().expect("a list");
        all.iter().find(|variant| variant["variant"] == name).expect("the variant")
    }

    fn entry(file: &[u8], name: &str) -> Vec<u8> {
        SafeTensors::deserialize(file).expect("safetensors").tensor(name).expect("an entry").data().to_vec()
    }

    fn step(&self) -> Guarded {
        let sizes = ["tokens", "rows"].map(|size| number(&self.about["step"][size]) as u64);
        Guarded::holding(&sizes.map(u64::to_le_bytes).concat(), self.align)
    }

    fn launch(&self) -> Launch {
        let mut launch = Launch::default();
        for argument in self.arguments() {
            let pointer = match text(&argument["kind"]) {
                "batch" => self.batch(argument, &mut launch),
                "values" => {
                    let cache: usize = text(&argument["entry"]).parse().expect("an argument");
                    launch.pointers[cache].wrapping_add(number(&argument["offset"]))
                }
                "result" => launch.add(Guarded::new(number(&argument["bytes"]), POISON, self.align)),
                _ => {
                    let bytes = Dump::entry(&self.before, text(&argument["entry"]));
                    assert_eq!(bytes.len(), number(&argument["bytes"]));
                    launch.add(Guarded::holding(&bytes, self.align))
                }
            };
            launch.pointers.push(pointer);
        }
        launch
    }

    fn batch(&self, argument: &Value, launch: &mut Launch) -> *mut u8 {
        let mut fields = [0u64; 7];
        for (field, name) in [(0, "positions"), (1, "sequences"), (2, "tables"), (4, "tiles")] {
            let list = Dump::entry(&self.before, text(&argument[name]));
            fields[field] = launch.add(Guarded::holding(&list, self.align)).addr() as u64;
        }
        for (field, name) in [(3, "table_stride"), (5, "tile_count"), (6, "block_stride")] {
            fields[field] = number(&argument[name]) as u64;
        }
        launch.add(Guarded::holding(&fields.map(u64::to_le_bytes).concat(), self.align))
    }

    /// Results and caches equal those of the device byte by byte.
    fn compare(&self, launch: &Launch) {
        for (argument, &pointer) in self.arguments().iter().zip(&launch.pointers) {
            if !["result", "cache"].contains(&text(&argument["kind"])) {
                continue;
            }
            let want = Dump::entry(&self.after, text(&argument["entry"]));
            let memory = launch.memory.iter().find(|memory| memory.start == pointer).expect("a buffer");
            assert!(memory.bytes() == want, "{} {}: {argument}", self.about["kernel"], self.about["case"]);
        }
    }

    fn parameters(&self, variant: &Value) -> Vec<String> {
        variant["parameters"].as_array().expect("a list").iter().map(|name| text(name).to_owned()).collect()
    }
}

impl Launch {
    fn add(&mut self, memory: Guarded) -> *mut u8 {
        self.memory.push(memory);
        self.memory.last().expect("just added").start
    }
}

/// Every launch of a folder, its JSON file first.
fn dumps(dir: &Path) -> Vec<Dump> {
    let entries = std::fs::read_dir(dir).expect("a folder").map(|entry| entry.expect("an entry").path());
    let mut files: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|end| end == "json")).collect();
    files.sort();
    files.iter().map(|file| Dump::open(dir, file)).collect()
}

type HostKernel = unsafe extern "C" fn(*const *mut u8, *const u8, *mut u8, i64, i64);

#[test]
fn the_host_runs_them_again() {
    let name = "x86-64-v3";
    let dir = dumped("host", &format!("host:{name}"));
    let dir = dir.path().join("dump");
    let all = dumps(&dir);
    assert!(all.len() > 50, "{} launches", all.len());
    for dump in all {
        let (variant, launch, step) = (dump.variant(name), dump.launch(), dump.step());
        assert_eq!(dump.parameters(variant), ["arguments", "step", "scratch", "first", "end"]);
        let scratch = Guarded::new(number(&variant["scratch"]), POISON, 64);
        let tasks = number(&variant["grid"][0]) as i64;
        // SAFETY: the document says that the function is called so.
        unsafe {
            let code = libloading::Library::new(dir.join(text(&variant["code"]))).expect("code");
            let kernel = code.get::<HostKernel>(text(&dump.about["kernel"]).as_bytes()).expect("a kernel");
            kernel(launch.pointers.as_ptr(), step.start, scratch.start, 0, tasks);
        }
        dump.compare(&launch);
    }
}

#[test]
#[cfg(feature = "emulator")]
fn the_emulator_runs_them_again() {
    use atomc_emulator::{Access, CodeObject, Emulator, Grid, Memory, Options};
    let dir = dumped("gfx942", "emu:gfx942:fast");
    let dir = dir.path().join("dump");
    // One token in room for more reads furthest beyond its step; a mixture has the most going on.
    let wanted = |dump: &Dump| ["one token with random", "a mixture with random"].contains(&text(&dump.about["case"]));
    let all: Vec<Dump> = dumps(&dir).into_iter().filter(wanted).collect();
    assert!(all.len() > 20, "{} launches", all.len());
    for dump in all {
        let (variant, launch, step) = (dump.variant("gfx942"), dump.launch(), dump.step());
        assert_eq!(dump.parameters(variant), ["arguments", "step", "workspace"]);
        let workspace = Guarded::new(number(&variant["workspace"]), 0, dump.align);
        let mut memory = Memory::default();
        for buffer in launch.memory.iter().chain([&step, &workspace]) {
            // SAFETY: the buffers live until the launch is over, and nothing else refers to them.
            unsafe {
                let (address, slack) = (buffer.start.expose_provenance() as u64, dump.align as u64);
                memory.map_with_slack(address, buffer.len as u64, slack, Access::ReadWrite);
            }
        }
        let pointers = launch.pointers.iter().chain([&step.start, &workspace.start]);
        let parameters: Vec<u8> = pointers.flat_map(|pointer| (pointer.addr() as u64).to_le_bytes()).collect();
        let code = std::fs::read(dir.join(text(&variant["code"]))).expect("code");
        let code = CodeObject::load(&code).expect("a code object");
        let grid = Grid::linear(number(&variant["grid"][0]) as u32, number(&variant["block"][0]) as u32);
        let kernel = text(&dump.about["kernel"]);
        let done = Emulator.launch(&code, kernel, grid, &parameters, &memory, &Options::fast());
        done.unwrap_or_else(|fault| panic!("{kernel} {}: {fault}", dump.about["case"]));
        dump.compare(&launch);
    }
}
