//! Kernels for NVIDIA, each a module of its own: PTX, which drivers translate for their chip, and
//! with NVIDIA's assembler also the code of the row's chip, which loads without translation. The
//! resources of a kernel are known only then.
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use atomc_artifact::manifest::{self, Extent, Module};
use atomc_ir::arch::GpuArch;
use atomc_ir::{Arch, Diagnostic};
use object::{Object as _, ObjectSection};

use crate::jobs::{Job, Object, parallel};
use crate::llvm::Llvm;
use crate::spec::Form;
use crate::{Resources, llvm, report};

/// Bytes of an instruction, on every chip since compute capability 7.0.
const INSTRUCTION: usize = 16;
/// Bytes of shared memory that the system keeps of each work-group's.
const RESERVED: usize = 1024;
/// The alignment of each part of a section, and of the section.
const ALIGN: usize = 64;

/// NVIDIA's assembler.
#[derive(Clone, Debug)]
pub struct Assembler(PathBuf);

impl Assembler {
    /// The one that `ATOMC_PTXAS` names (an empty name means none), else the first on the path or
    /// where CUDA is installed.
    pub fn find() -> Result<Option<Assembler>, Diagnostic> {
        if let Some(named) = std::env::var_os("ATOMC_PTXAS") {
            let missing = || fail(format!("ATOMC_PTXAS names {}, which is no file", Path::new(&named).display()));
            return match Path::new(&named) {
                _ if named.is_empty() => Ok(None),
                path if path.is_file() => Ok(Some(Assembler(path.into()))),
                _ => Err(missing()),
            };
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let homes = std::env::var_os("CUDA_HOME").into_iter().map(PathBuf::from).chain(["/usr/local/cuda".into()]);
        let folders = std::env::split_paths(&path).chain(homes.map(|home| home.join("bin")));
        Ok(folders.map(|folder| folder.join("ptxas")).find(|file| file.is_file()).map(Assembler))
    }

    /// The release of the assembler, e.g. `13.0, V13.0.88`: it shapes the code.
    pub fn version(&self) -> Result<String, Diagnostic> {
        let text = self.run([OsStr::new("--version")])?.0;
        let release = text.lines().find_map(|line| line.split_once("release ")).map(|(_, release)| release.to_owned());
        release.ok_or_else(|| fail(format!("ptxas --version says {text:?}")))
    }

    /// The code of a module for the chip, and the assembler's report.
    fn assemble(&self, text: &str, arch: &Arch) -> Result<(Vec<u8>, String), Diagnostic> {
        let dir = tempfile::tempdir().map_err(fail)?;
        let (from, to) = (dir.path().join("kernel.ptx"), dir.path().join("kernel.cubin"));
        std::fs::write(&from, text).map_err(fail)?;
        let arch = format!("-arch={}", arch.cpu);
        let (_, said) = self.run([arch.as_ref(), OsStr::new("-v"), "-o".as_ref(), to.as_os_str(), from.as_os_str()])?;
        Ok((std::fs::read(to).map_err(fail)?, said))
    }

    /// Runs the assembler, and returns its two outputs.
    fn run<'a>(&self, args: impl IntoIterator<Item = &'a OsStr>) -> Result<(String, String), Diagnostic> {
        let done = Command::new(&self.0).args(args).output();
        let done = done.map_err(|e| fail(format!("{}: {e}", self.0.display())))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        match done.status.success() {
            true => Ok((text(&done.stdout), text(&done.stderr))),
            false => Err(fail(text(&done.stderr))),
        }
    }
}

fn fail(what: impl std::fmt::Display) -> Diagnostic {
    Diagnostic::new("target::ptxas", format!("assembling failed: {what}"))
        .help("ATOMC_PTXAS names another ptxas; empty, it does without, and drivers translate the kernels when they are loaded")
}

/// The modules of all kernels, one after the other.
pub fn compile(jobs: &[Job], arch: GpuArch) -> Result<Object, Diagnostic> {
    let assembler = Assembler::find()?;
    let parts = parallel(jobs, |job| {
        let _span = tracing::debug_span!("kernel", symbol = job.symbol(), arch = arch.name).entered();
        let cx = llvm::context();
        let b = cx.create_builder();
        let (module, mut info) = job.emit(Llvm { cx: &cx, b: &b }, arch.arch())?;
        let text = llvm::text(&module, arch.arch(), Form::Asm)?;
        let mut code = None;
        if let Some(assembler) = &assembler {
            let (cubin, said) =
                assembler.assemble(&text, arch.arch()).map_err(|e| e.at(format!("kernel {}", job.symbol())))?;
            info.resources = Some(resources(&text, &cubin, &said, arch, &info)?);
            code = Some(cubin);
        }
        Ok((info, text, code))
    })?;
    let mut section = Vec::new();
    let mut place = |part: &[u8]| {
        section.resize(section.len().next_multiple_of(ALIGN), 0);
        let extent = Extent { start: section.len(), bytes: part.len() };
        section.extend_from_slice(part);
        extent
    };
    let mut infos = Vec::with_capacity(parts.len());
    for (info, text, code) in parts {
        let ptx = place(format!("{text}\0").as_bytes());
        infos.push(manifest::Kernel { module: Some(Module { ptx, cubin: code.map(|code| place(&code)) }), ..info });
    }
    Ok(Object { code: section, kernels: infos })
}

/// The resources of a kernel, from the assembler's report and its code. Matrix instructions are
/// those of the text.
fn resources(
    text: &str,
    cubin: &[u8],
    said: &str,
    arch: GpuArch,
    info: &manifest::Kernel,
) -> Result<Resources, Diagnostic> {
    let before = |what: &str| number_before(said, what).ok_or_else(|| fail(format!("no `{what}` in {said:?}")));
    let registers = before(" registers")?;
    let lds = number_before(said, " bytes smem").unwrap_or(0);
    let spilled = before(" bytes spill stores")?;
    let code_bytes = code_bytes(cubin).map_err(fail)?;
    let warps = info.threads.div_ceil(arch.simt.wave);
    let matrix = |line: &&str| ["mma.sync", "wgmma.mma_async", "tcgen05.mma"].iter().any(|name| line.contains(name));
    Ok(Resources {
        vgprs: registers,
        lds: lds + info.shared,
        scratch: before(" bytes stack frame")?,
        vgpr_spills: spilled / 4,
        occupancy: report::occupancy(&arch.simt.unit, registers, lds + info.shared + RESERVED, warps),
        code_bytes,
        instructions: code_bytes / INSTRUCTION,
        matrix: text.lines().filter(matrix).count(),
        ..Resources::default()
    })
}

/// Bytes of instructions. Some releases of the assembler put headers at odd places.
fn code_bytes(cubin: &[u8]) -> Result<usize, object::Error> {
    let file = object::File::parse(cubin)?;
    let code = file.sections().filter(|s| s.name().is_ok_and(|name| name.starts_with(".text.")));
    Ok(code.map(|s| s.size() as usize).sum())
}

/// The first number that ends right before `what`.
fn number_before(text: &str, what: &str) -> Option<usize> {
    let number = |(at, _): (usize, &str)| {
        let before = &text[..at];
        before[before.trim_end_matches(|c: char| c.is_ascii_digit()).len()..].parse().ok()
    };
    text.match_indices(what).find_map(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of one program header and no section.
    #[test]
    fn headers_at_odd_places() {
        for at in [64, 65] {
            let mut cubin = vec![0; at + 56];
            cubin[..8].copy_from_slice(b"\x7fELF\x02\x01\x01A");
            for (place, half) in [(16, 2), (18, 190), (20, 1), (32, at as u16), (52, 64), (54, 56), (56, 1), (58, 64)] {
                cubin[place..place + 2].copy_from_slice(&half.to_le_bytes());
            }
            assert_eq!(code_bytes(&cubin), Ok(0), "{at}");
        }
    }

    #[test]
    fn reads_what_the_assembler_says() {
        let said = "ptxas info    : (C7513) Potential Performance Loss: instructions defining input registers of a wgmma\n\
                    ptxas info    : 0 bytes gmem\nptxas info    : Compiling entry function 'k' for 'sm_90a'\n\
                    ptxas info    : Function properties for k\n    16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads\n\
                    ptxas info    : Used 168 registers, used 1 barriers, 4096 bytes smem";
        let read = |what| number_before(said, what);
        assert_eq!(
            (read(" registers"), read(" bytes smem"), read(" bytes spill stores")),
            (Some(168), Some(4096), Some(12))
        );
        assert_eq!((read(" bytes stack frame"), read(" bytes lmem")), (Some(16), None));
    }
}
