//! The limits of the server's connections.
use std::io;
use std::time::Duration;

/// Limits of connections. Each field describes the behaviour at its limit; docs/serve.md has the
/// same as a table.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most connections that are served. At the limit, one that waits for its client is closed for
    /// a new one; if none waits, the new one is of the reserve.
    pub connections: usize,
    /// Most of them from one address: a client of IPv6 has the 64 bits of its network. At the
    /// limit, one of its own that waits is closed for a new one in the same way.
    pub each: usize,
    /// Connections in addition to those. On them `/health` is answered and everything else gets
    /// status 503. The oldest is closed for a new one.
    pub reserve: usize,
    /// How long a client may keep the server waiting. A head must be there in that time. Of bodies
    /// and answers each kibibyte gives a second of it back. Then a body gets status 408, and other
    /// connections are closed.
    pub patience: Duration,
}

/// Bytes that give a second of a client's time back.
pub(super) const BYTES_A_SECOND: u32 = 1024;

impl Default for Limits {
    fn default() -> Limits {
        Limits { connections: 1024, each: 512, reserve: 32, patience: Duration::from_secs(30) }
    }
}

/// Files that a server has open in addition to its connections: weights, devices, libraries, pipes.
const OTHER_FILES: usize = 96;
/// Fewest connections that are worth a server.
const FEWEST: usize = 8;

/// Why there are too few files for connections.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "a message says what its variant means, and shows the fields")]
pub enum FilesError {
    #[error("this process may have {has} files open, and {connections} connections need {needs}")]
    Few { has: u64, connections: usize, needs: u64 },
    #[error("how many files this process may have open is not known: {0}")]
    Unknown(io::Error),
}

impl Limits {
    /// Fits the limits to the number of files that the system permits this process: raises that
    /// number if it may, and takes fewer connections if `may_shrink` and there are too few files
    /// for all of them.
    pub fn with_files(self, may_shrink: bool) -> Result<Limits, FilesError> {
        let needs = self.files();
        let has = raise_files(needs).map_err(FilesError::Unknown)?;
        if has >= needs {
            return Ok(self);
        }
        let left = usize::try_from(has).unwrap_or(usize::MAX).saturating_sub(OTHER_FILES + self.reserve);
        if may_shrink && left >= FEWEST {
            return Ok(Limits { connections: left, each: self.each.min(left.div_ceil(2)), ..self });
        }
        let connections = if may_shrink { FEWEST } else { self.connections };
        Err(FilesError::Few { has, connections, needs: Limits { connections, ..self }.files() })
    }

    fn files(&self) -> u64 {
        (self.connections.saturating_add(self.reserve).saturating_add(OTHER_FILES)) as u64
    }
}

/// Raises the number of files that this process may have open to `wanted`, if that is allowed, and
/// returns it.
fn raise_files(wanted: u64) -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is of the call's type and outlives it.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if limit.rlim_cur >= wanted {
        return Ok(limit.rlim_cur);
    }
    let raised = libc::rlimit { rlim_cur: wanted.min(limit.rlim_max), rlim_max: limit.rlim_max };
    // SAFETY: the structure is of the call's type and outlives it.
    match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) } {
        0 => Ok(raised.rlim_cur),
        _ => Ok(limit.rlim_cur),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_bound_connections() {
        let many = Limits { connections: 1 << 40, ..Limits::default() };
        assert!(matches!(many.with_files(false), Err(FilesError::Few { .. })));
        let fewer = many.with_files(true).unwrap();
        assert!(fewer.connections < 1 << 40 && fewer.each <= fewer.connections);
        assert_eq!(Limits { connections: 8, ..many }.with_files(false).unwrap().connections, 8);
    }
}
