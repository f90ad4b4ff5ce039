//! Numbers that are read when they are wanted.
use super::CheckpointError;
use std::fmt::Debug;

/// What has the bytes of tensors: a file, or something that makes them of another file's.
pub trait Numbers: Debug + Sync {
    /// Reads bytes from the `at`th on.
    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), CheckpointError>;
}

/// The numbers of a tensor, which lie one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Stored<'a> {
    place: &'a dyn Numbers,
    start: u64,
    len: usize,
}

impl<'a> Stored<'a> {
    /// So many bytes of a place, from the `start`th on.
    pub fn new(place: &'a dyn Numbers, start: u64, len: usize) -> Stored<'a> {
        Stored { place, start, len }
    }

    /// Bytes of the tensor.
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether the tensor has no numbers.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Reads bytes from the `at`th on.
    pub fn read(self, at: usize, out: &mut [u8]) -> Result<(), CheckpointError> {
        assert!(at + out.len() <= self.len, "what is read lies in the tensor");
        self.place.read(self.start + at as u64, out)
    }

    /// Whether both have the same bytes.
    pub fn equals(self, other: Stored) -> Result<bool, CheckpointError> {
        /// Bytes that are compared at once.
        const PART: usize = 1 << 20;
        if self.len != other.len {
            return Ok(false);
        }
        let (mut one, mut two) = (vec![0; self.len.min(PART)], vec![0; self.len.min(PART)]);
        for at in (0..self.len).step_by(PART) {
            let len = PART.min(self.len - at);
            self.read(at, &mut one[..len])?;
            other.read(at, &mut two[..len])?;
            if one[..len] != two[..len] {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads all bytes.
    pub fn to_vec(self) -> Result<Vec<u8>, CheckpointError> {
        let mut bytes = vec![0; self.len];
        self.read(0, &mut bytes)?;
        Ok(bytes)
    }
}
