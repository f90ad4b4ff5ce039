use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};

use super::*;

const LIMITS: Limits = Limits { connections: 4, each: 3, reserve: 2, patience: std::time::Duration::from_secs(1) };

fn address(host: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, host])
}

/// Whether its connection has to go.
fn is_cut(ticket: &Ticket) -> bool {
    pin!(ticket.seat.cut()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

#[test]
fn those_that_wait_go_for_those_that_come() {
    let room = Room::new(LIMITS);
    let held: Vec<Ticket> = (0..4).map(|host| room.take(address(host))).collect();
    held[0].seat.is_asked();
    let new = room.take(address(9));
    assert_eq!(new.seat.full(), None);
    assert_eq!(held.iter().map(is_cut).collect::<Vec<_>>(), [false, true, false, false]);
    // One that asks again is not the one that has waited longest.
    held[2].seat.is_asked();
    held[2].seat.is_answered();
    drop(room.take(address(8)));
    assert_eq!([&held[2], &held[3]].map(is_cut), [false, true]);
}

#[test]
fn a_key_is_worth_more_than_patience() {
    let room = Room::new(LIMITS);
    let held: Vec<Ticket> = (0..4).map(|host| room.take(address(host))).collect();
    held[0].seat.know();
    held[1].seat.know();
    let _new = room.take(address(9));
    assert_eq!(held.iter().map(is_cut).collect::<Vec<_>>(), [false, false, true, false]);
}

#[test]
fn the_largest_crowd_gives_way() {
    let room = Room::new(LIMITS);
    let old = room.take(address(1));
    let crowd: Vec<Ticket> = (0..3).map(|_| room.take(address(2))).collect();
    let _new = room.take(address(3));
    assert!(!is_cut(&old) && is_cut(&crowd[0]) && !is_cut(&crowd[1]));
}

#[test]
fn an_address_has_its_own_limit() {
    let room = Room::new(LIMITS);
    let network = |end: u16| IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, end]);
    let own: Vec<Ticket> = (0..3).map(|end| room.take(network(end))).collect();
    own.iter().for_each(|ticket| ticket.seat.is_asked());
    assert_eq!(room.take(network(9)).seat.full(), Some(Full::Address(3)));
    assert_eq!(room.take(address(1)).seat.full(), None);
    own[1].seat.is_stuck(true);
    assert_eq!(room.take(network(9)).seat.full(), None);
    assert!(is_cut(&own[1]));
}

#[test]
fn a_reserve_is_left_where_all_are_busy() {
    let room = Room::new(LIMITS);
    let held: Vec<Ticket> = (0..4).map(|host| room.take(address(host))).collect();
    held.iter().for_each(|ticket| ticket.seat.is_asked());
    let reserve: Vec<Ticket> = (0..3).map(|_| room.take(address(9))).collect();
    assert!(reserve.iter().all(|ticket| ticket.seat.full() == Some(Full::All(4))));
    assert_eq!(reserve.iter().map(is_cut).collect::<Vec<_>>(), [true, false, false]);
    drop(held);
    assert_eq!(room.take(address(9)).seat.full(), None);
}

#[test]
fn quiet_is_told_once_behind_requests() {
    let room = Room::new(LIMITS);
    let ticket = room.take(address(1));
    assert!(!room.is_quiet());
    ticket.seat.is_asked();
    assert!(!room.is_quiet());
    ticket.seat.is_answered();
    drop(ticket);
    assert!(room.is_quiet() && !room.is_quiet());
}
