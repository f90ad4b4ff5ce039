//! Access to a server: addresses, keys, origins, limits of connections.
use std::env::var_os;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use atomc_artifact::files;
use atomc_server::api::Access;
use atomc_server::serve::Limits;

use super::super::failure::{Failure, tell};
use super::at_least_one;

/// A key of the interface, which a command line would show to everyone.
const KEY: &str = "ATOMC_API_KEY";
/// Bits of a file's mode by which others than its owner may write to it.
const OTHERS_WRITE: u32 = 0o022;

#[derive(clap::Args)]
pub struct AccessArgs {
    /// The address to listen on, or a name of it; 0.0.0.0 is all
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: String,
    /// The port to listen on; 0 takes one that is free
    #[arg(long, value_name = "PORT", default_value_t = 8000)]
    port: u16,
    /// A file with keys, a line each, of which a client must send one; only its owner may write to
    /// it [default: the key in ATOMC_API_KEY, if it is set]
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Origins whose pages may ask from a browser, as https://page.example; `*` is all
    #[arg(long, value_name = "ORIGIN,…", value_delimiter = ',', value_parser = origin)]
    cors: Vec<String>,
    /// Names by which clients ask a server that listens on this machine alone and wants no key,
    /// beside localhost, as where a proxy passes the name on
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = host_name)]
    allowed_host: Vec<String>,
    /// Most connections at once; one that waits for its client is closed for a new one [default:
    /// 1024, or as many as the process may have files for]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    connections: Option<usize>,
    /// Most connections of one address; behind a proxy all are of one [default: half of
    /// `--connections`]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    address_connections: Option<usize>,
    /// Seconds that a client may keep the server waiting, with the head of a request, with its body
    /// and for the answer; of the last two each kibibyte gives a second back
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    patience: u64,
}

impl AccessArgs {
    /// Where to listen.
    pub fn address(&self) -> Result<SocketAddr, Failure> {
        let fault = |error: &dyn std::fmt::Display| Failure::new("address", format!("--host {}: {error}", self.host));
        let found = (self.host.as_str(), self.port).to_socket_addrs().map_err(|error| fault(&error))?;
        let found: Vec<SocketAddr> = found.collect();
        // localhost has addresses of both kinds, and its clients try both.
        let first = found.iter().find(|address| address.is_ipv4()).or(found.first());
        first.copied().ok_or_else(|| fault(&"it has no address"))
    }

    /// The limits of connections that fit this process's limit of files.
    pub fn limits(&self) -> Result<Limits, Failure> {
        let usual = Limits::default();
        let connections = self.connections.unwrap_or(usual.connections);
        let each = self.address_connections.unwrap_or(connections.div_ceil(2));
        let wanted = Limits { connections, each, patience: Duration::from_secs(self.patience), ..usual };
        let limits = wanted.with_files(self.connections.is_none()).map_err(|error| {
            Failure::new("files", error).help("`ulimit -n` shows the limit; raise it, or take fewer `--connections`.")
        })?;
        if limits.connections < wanted.connections {
            let why = "as many as this process may have files for";
            tell(format_args!("warning: at most {} connections, {why} (`ulimit -n`)", limits.connections));
        }
        Ok(limits)
    }

    /// The access rules at an address.
    pub fn access(&self, address: SocketAddr) -> Result<Access, Failure> {
        let keys = match &self.api_key_file {
            Some(file) => keys_of_file(file)?,
            None => key_of_environment()?.into_iter().collect(),
        };
        let is_local = address.ip().is_loopback();
        if keys.is_empty() && !is_local {
            tell(format_args!("warning: no key is wanted, so whoever reaches {} may ask", address.ip()));
        }
        let hosts = is_local.then(|| self.allowed_host.clone());
        Ok(Access { keys, origins: self.cors.clone(), hosts })
    }
}

/// The part about keys of the line at the start.
pub fn shown(access: &Access) -> String {
    match access.keys.len() {
        0 => "without keys".into(),
        1 => "with a key".into(),
        keys => format!("with {keys} keys"),
    }
}

fn key_of_environment() -> Result<Option<String>, Failure> {
    let Some(key) = var_os(KEY) else { return Ok(None) };
    let fault = |why: &str| Failure::new("api_key", format!("{KEY} {why}"));
    let key = key.into_string().map_err(|_| fault("is not UTF-8"))?;
    match key.trim() {
        "" => Err(fault("is set and empty").help("Unset it, and no key is wanted; or give it a key.")),
        key if !is_visible(key) => Err(fault("has a character that no header can have")),
        key => Ok(Some(key.to_owned())),
    }
}

fn keys_of_file(file: &Path) -> Result<Vec<String>, Failure> {
    let fault = |why: &dyn std::fmt::Display| Failure::file("api_key_file", file, why);
    let mode = std::fs::metadata(file).map_err(|error| fault(&error))?.mode() & 0o7777;
    if mode & OTHERS_WRITE != 0 {
        let help = format!("`chmod go-w {}`", file.display());
        return Err(fault(&format!("others may write to it (mode {mode:o}), and so give themselves a key")).help(help));
    }
    let text = files::read_to_string(file).map_err(|error| fault(&error))?;
    let lines = text.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty());
    let keys: Vec<String> = lines
        .map(|(index, key)| match is_visible(key) {
            true => Ok(key.to_owned()),
            false => Err(fault(&format!("line {}: a key has visible characters of ASCII alone", index + 1))),
        })
        .collect::<Result<_, _>>()?;
    match keys.is_empty() {
        true => Err(fault(&"there is no key in it")),
        false => Ok(keys),
    }
}

/// Whether a client can send a key.
fn is_visible(key: &str) -> bool {
    key.bytes().all(|byte| byte.is_ascii_graphic())
}

fn origin(text: &str) -> Result<String, String> {
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let is_host =
        |host: &str| !host.is_empty() && host.bytes().all(|b| b.is_ascii_graphic() && !b"/?#@\\".contains(&b));
    match text == "*" || host.is_some_and(is_host) {
        true => Ok(text.to_ascii_lowercase()),
        false => Err("an origin is http:// or https:// and a host, with a port if it has one; or `*`".into()),
    }
}

fn host_name(text: &str) -> Result<String, String> {
    let is_name = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    match !text.is_empty() && text.bytes().all(is_name) {
        true => Ok(text.to_ascii_lowercase()),
        false => Err("a host is a name without a port".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_and_hosts_are_looked_at() {
        for text in ["*", "http://localhost:3000", "https://page.example", "HTTPS://Page.example"] {
            assert_eq!(origin(text).is_ok(), !text.starts_with("HTTPS"), "{text}");
        }
        for text in ["nonsense", "", "http://", "https://page.example/", "https://a b", "ftp://page"] {
            assert!(origin(text).is_err(), "{text}");
        }
        assert!(host_name("model.lan").is_ok() && host_name("").is_err() && host_name("model.lan:80").is_err());
    }
}
