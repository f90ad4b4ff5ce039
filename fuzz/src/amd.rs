//! What the emulator reads: code for AMD.
use atomc_emulator::CodeObject;
use atomc_emulator::decode::disasm::Disassembler;
use atomc_emulator::decode::parse;
use atomc_emulator::isa::Isa;

/// A code object for AMD, with every kernel decoded.
pub fn code_object(data: &[u8]) {
    let Ok(object) = CodeObject::load(data) else { return };
    let names: Vec<String> = object.kernels().map(str::to_owned).collect();
    for name in names {
        _ = object.decoded(&name);
    }
}

/// Instructions of the chip that the first byte chooses, each read from 20 bytes of its own, so
/// that one which is none does not hide the next.
pub fn instructions(data: &[u8]) {
    let Some((chip, code)) = data.split_first() else { return };
    let names: Vec<&str> = Isa::names().collect();
    let isa = Isa::find(names[usize::from(*chip) % names.len()]).expect("it has a name");
    let disassembler = Disassembler::new(isa).expect("LLVM knows it");
    for window in code.chunks(20) {
        if let Some((text, _)) = disassembler.next(window, 0) {
            _ = parse::instructions(&text, 0);
        }
    }
}
