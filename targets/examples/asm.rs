use atomc_ir::*;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let g = parse(&std::fs::read_to_string(&a[1]).unwrap()).unwrap();
    let family = Family::ALL.into_iter().find(|f| f.name() == a[2]).unwrap();
    let arch = atomc_targets::rows().iter().find(|r| r.name == a[3]).unwrap();
    let spec = atomc_targets::KernelSpec { symbol: "k".into(), family, body: &g, tokens: a[4].parse().unwrap() };
    let t = std::time::Instant::now();
    println!("{}", atomc_targets::text(&[spec], arch, atomc_targets::Form::Asm).unwrap());
    eprintln!("{:?}", t.elapsed());
}
