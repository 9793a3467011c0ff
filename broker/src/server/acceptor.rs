//! Accepts connections on one core and gives each to the least loaded one.

use std::net::SocketAddr;
use std::rc::Rc;

use ringlog_io::{Listener, Priority, Socket, SocketTransfer};

use super::connection;
use crate::core::Core;
use crate::core::messages::CoreRequest;
use ringlog_shard::mesh::CoreId;

/// The core that accepts. It knows how many connections every core has.
pub const ACCEPTOR_CORE: CoreId = CoreId(0);

/// Accepts on one listener until the core drains.
pub struct Acceptor {
    core: Rc<Core>,
    listener: Listener,
}

impl Acceptor {
    pub fn new(core: Rc<Core>, listener: Listener) -> Acceptor {
        Acceptor { core, listener }
    }

    pub async fn run(self) {
        loop {
            match self.core.io.accept(&self.listener).await {
                Ok((socket, peer)) => self.place(socket, peer).await,
                Err(error) => {
                    if self.core.is_draining() {
                        return;
                    }
                    // Usually too many open files: waiting lets connections close, spinning would not.
                    tracing::warn!(%error, "accept failed");
                    self.core.io.sleep(std::time::Duration::from_millis(100)).await;
                }
            }
        }
    }

    async fn place(&self, socket: Socket, peer: SocketAddr) {
        let core = &self.core;
        let limits = &core.config.limits;
        let image = core.image();
        let per_address_max = image
            .runtime()
            .map_or(limits.connections_per_address_max, |runtime| runtime.connections_per_address_max);
        let placed =
            core.connections.place(peer.ip(), core.core_count, limits.connections_max, per_address_max);
        match placed {
            Err(turned_away) => {
                core.observer.count(|metrics| metrics.connections_refused += 1);
                tracing::warn!(%peer, reason = %turned_away, "connection refused");
            }
            Ok(target) if target == core.id => start(core, socket),
            Ok(target) => {
                let transfer = socket.into_transfer();
                core.mesh.call(target, CoreRequest::Adopt(transfer)).await;
            }
        }
    }
}

/// Takes over a connection that the acceptor gave to this core.
pub fn adopt(core: &Rc<Core>, transfer: SocketTransfer) {
    core.observer.count(|metrics| metrics.connections_adopted += 1);
    let socket = core.io.adopt(transfer);
    start(core, socket);
}

fn start(core: &Rc<Core>, socket: Socket) {
    let task = connection::serve(Rc::clone(core), socket);
    core.io.spawn(Priority::Foreground, task).detach();
}
