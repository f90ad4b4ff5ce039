#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| atomc_fuzz::pieces(data));
