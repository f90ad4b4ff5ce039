//! Room for connections: their limit, and the choice of the one that is closed when there is no
//! more room.
//!
//! A connection waits for its client until a whole request is there, after the end of an answer,
//! and while the client does not read. Only such connections are closed for others: first those
//! that were opened without a key, then those of the address with the most of them, then the one
//! with the longest wait. Idle connections therefore take no place from those with requests.
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::limits::Limits;

/// Bits of an address of IPv6 that a client cannot choose.
const NETWORK: u32 = 64;

/// Why a connection is of the reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// All connections are busy.
    All(usize),
    /// All connections of the client's address are.
    Address(usize),
}

/// All connections.
pub struct Room {
    limits: Limits,
    seats: Mutex<BTreeMap<u64, Arc<Seat>>>,
    /// Whether there were requests since the last quiet time.
    was_asked: Arc<AtomicBool>,
}

/// The place of one connection.
pub struct Seat {
    /// Its place in the order of arrival.
    number: u64,
    network: IpAddr,
    full: Option<Full>,
    /// Whether a key has opened it.
    is_known: AtomicBool,
    turn: Mutex<Turn>,
    cut: Notify,
    was_asked: Arc<AtomicBool>,
}

/// The waits of a connection.
#[derive(Debug)]
struct Turn {
    /// Since when it waits for the client to ask; none while it has a request.
    asking: Option<Instant>,
    /// The time since which the client does not read; none while it does.
    stuck: Option<Instant>,
}

/// A seat while its connection is there.
pub struct Ticket {
    room: Arc<Room>,
    /// The seat.
    pub seat: Arc<Seat>,
}

impl Room {
    /// With these limits.
    pub fn new(limits: Limits) -> Arc<Room> {
        Arc::new(Room { limits, seats: Mutex::default(), was_asked: Arc::default() })
    }

    /// A seat for a connection from an address.
    pub fn take(self: &Arc<Room>, address: IpAddr) -> Ticket {
        let network = network(address);
        let mut seats = self.seats();
        let full = self.make_room(&mut seats, network);
        let number = seats.last_key_value().map_or(0, |(last, _)| last + 1);
        let seat = Arc::new(Seat::new(number, network, full, self.was_asked.clone()));
        seats.insert(number, seat.clone());
        Ticket { room: self.clone(), seat }
    }

    /// Closes the connection that may go first, if one may.
    pub fn relieve(&self) {
        close(&mut self.seats(), |_| true);
    }

    /// Whether there were requests and none is left. Returns true only once for that.
    pub fn is_quiet(&self) -> bool {
        let seats = self.seats();
        let is_busy = seats.values().any(|seat| seat.turn().asking.is_none());
        !is_busy && self.was_asked.swap(false, Relaxed)
    }

    /// Makes room for a connection, or says why it is of the reserve.
    fn make_room(&self, seats: &mut BTreeMap<u64, Arc<Seat>>, network: IpAddr) -> Option<Full> {
        let Limits { connections, each, reserve, .. } = self.limits;
        let is_own = |seat: &Seat| seat.network == network && seat.full.is_none();
        let is_served = |seat: &Seat| seat.full.is_none();
        let full = if count(seats, is_own) >= each && !close(seats, is_own) {
            Full::Address(each)
        } else if count(seats, is_served) >= connections && !close(seats, is_served) {
            Full::All(connections)
        } else {
            return None;
        };
        if count(seats, |seat| seat.full.is_some()) >= reserve {
            let oldest = seats.values().find(|seat| seat.full.is_some()).map(|seat| seat.number);
            oldest.and_then(|number| seats.remove(&number)).into_iter().for_each(|seat| seat.cut.notify_one());
        }
        Some(full)
    }

    fn seats(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Seat>>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn count(seats: &BTreeMap<u64, Arc<Seat>>, of: impl Fn(&Seat) -> bool) -> usize {
    seats.values().filter(|seat| of(seat)).count()
}

/// Closes one of these that waits for its client. Returns whether there was one.
fn close(seats: &mut BTreeMap<u64, Arc<Seat>>, of: impl Fn(&Seat) -> bool) -> bool {
    let waiting: Vec<(Instant, &Arc<Seat>)> =
        seats.values().filter(|seat| of(seat)).filter_map(|seat| Some((seat.waits_since()?, seat))).collect();
    let mut crowds = BTreeMap::<IpAddr, usize>::new();
    waiting.iter().for_each(|(_, seat)| *crowds.entry(seat.network).or_default() += 1);
    let order = |(since, seat): &&(Instant, &Arc<Seat>)| {
        (seat.is_known.load(Relaxed), Reverse(crowds.get(&seat.network).copied()), *since)
    };
    let Some(number) = waiting.iter().min_by_key(order).map(|(_, seat)| seat.number) else { return false };
    seats.remove(&number).into_iter().for_each(|seat| seat.cut.notify_one());
    true
}

/// The part of an address that identifies a client.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << NETWORK))),
    }
}

impl Seat {
    fn new(number: u64, network: IpAddr, full: Option<Full>, was_asked: Arc<AtomicBool>) -> Seat {
        let turn = Mutex::new(Turn { asking: Some(Instant::now()), stuck: None });
        Seat { number, network, full, is_known: AtomicBool::new(false), turn, cut: Notify::new(), was_asked }
    }

    /// Why its requests are refused, if they are.
    pub fn full(&self) -> Option<Full> {
        self.full
    }

    /// A key has opened it.
    pub fn know(&self) {
        self.is_known.store(true, Relaxed);
    }

    /// Waits until the connection must go.
    pub async fn cut(&self) {
        self.cut.notified().await;
    }

    /// A whole request is there.
    pub(super) fn is_asked(&self) {
        self.turn().asking = None;
    }

    /// An answer has ended.
    pub(super) fn is_answered(&self) {
        self.turn().asking = Some(Instant::now());
        self.was_asked.store(true, Relaxed);
    }

    /// Sets whether the client has stopped reading.
    pub(super) fn is_stuck(&self, stuck: bool) {
        let mut turn = self.turn();
        turn.stuck = if stuck { turn.stuck.or_else(|| Some(Instant::now())) } else { None };
    }

    fn waits_since(&self) -> Option<Instant> {
        let Turn { asking, stuck } = *self.turn();
        asking.or(stuck)
    }

    fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ticket {
    /// How long the client may keep the server waiting.
    pub fn patience(&self) -> Duration {
        self.room.limits.patience
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.room.seats().remove(&self.seat.number);
    }
}

#[cfg(test)]
mod tests;
