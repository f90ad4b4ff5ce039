//! Number formats: conversions between bits of f16, bf16, 8-, 6- and 4-bit floats and f32, with the roundings of the hardware.
//! Scalar and memory instructions use them as well as vector arithmetic.
