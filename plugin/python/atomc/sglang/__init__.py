"""SGLang serves models through atomc artifacts: SGLANG_EXTERNAL_MODEL_PACKAGE names this package; see docs/sglang.md."""
