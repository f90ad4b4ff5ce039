use super::*;
use crate::parse;
