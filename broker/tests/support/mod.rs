//! What the simulation of the broker is made of: a real node on a simulated host, real clients, the history that both
//! leave, and the play in which a seed lets them meet.
#![allow(dead_code, reason = "a build with a planted bug, and the soak, use a part of it")]

pub mod clients;
pub mod consumer;
pub mod group_play;
pub mod group_scene;
pub mod history;
pub mod member;
pub mod node;
pub mod reached;
pub mod requests;
pub mod scene;
pub mod trim;
pub mod weather;
