mod common;
#[test]
fn scratch() {
    let ir = std::fs::read_to_string("/tmp/scratch.ll").unwrap();
    for isa in common::isas() {
        let code = common::compile(&ir, isa);
        for k in code.kernels() {
            println!("== {} {k}", isa.name);
            match code.decoded(k).unwrap() {
                Ok(d) => d.texts.iter().for_each(|t| println!("  {t}")),
                Err(e) => println!("{e}"),
            }
        }
    }
}
