//! A machine with its log: replays, appends, and keeps the log short by snapshots. Answers nobody and publishes nothing.

use ringlog_protocol::ids::Offset;
use ringlog_shard::state_machine::{MachineSnapshot, StateMachine};

use super::{MachineLog, RunnerError};

/// The machine and its log: `machine` holds exactly the records below `next`.
pub(super) struct Replica<M, L> {
    pub(super) machine: M,
    next: Offset,
    log: L,
    growth: Growth,
}

/// When the next snapshot is due, in bytes of records.
struct Growth {
    /// Replayed since the last snapshot, or since the last try to take one.
    behind: u64,
    /// Of the last snapshot.
    snapshot: u64,
    /// The smallest distance between two.
    between: u64,
}

impl Growth {
    /// At least as much as the last snapshot holds came behind it: so snapshots write at most as much again as the log does, however
    /// large the state is.
    fn is_due(&self) -> bool {
        self.behind > self.between.max(self.snapshot)
    }
}

impl<M: StateMachine, L: MachineLog> Replica<M, L> {
    /// Brings a fresh machine to the end of its log, from the log's snapshot where there is one. The next snapshot is due once more
    /// than `between` bytes of records came behind it.
    pub(super) async fn restore(machine: M, log: L, between: u64) -> Result<Replica<M, L>, RunnerError> {
        let growth = Growth { behind: 0, snapshot: 0, between };
        let mut replica = Replica { machine, next: Offset(0), log, growth };
        if let Some(MachineSnapshot { offset, records }) = replica.log.load_snapshot().await? {
            let failed = |reason: String| RunnerError::Snapshot { offset, reason };
            if offset < Offset(1) || records.is_empty() {
                return Err(failed("it holds nothing".to_owned()));
            }
            replica.machine.restore(offset, &records).map_err(|error| failed(error.to_string()))?;
            replica.next = offset;
            replica.growth.snapshot = bytes_of(&records);
        }
        replica.catch_up().await?;
        Ok(replica)
    }

    /// Replays what is committed and not yet here.
    pub(super) async fn catch_up(&mut self) -> Result<(), RunnerError> {
        loop {
            let records = self.log.read(self.next).await?;
            if records.is_empty() {
                return Ok(());
            }
            for record in records {
                self.replay(record.offset, &record.bytes)?;
            }
        }
    }

    fn replay(&mut self, offset: Offset, record: &[u8]) -> Result<(), RunnerError> {
        let failed = |reason: String| RunnerError::Replay { offset, reason };
        if offset < self.next {
            return Err(failed(format!("replay of offset {offset} after everything below {}", self.next)));
        }
        self.machine.replay(offset, record).map_err(|error| failed(error.to_string()))?;
        self.next = Offset(offset.0 + 1);
        self.growth.behind += record.len() as u64;
        Ok(())
    }

    /// Appends, waits for the commit and replays.
    pub(super) async fn commit(&mut self, records: Vec<Vec<u8>>) -> Result<(), RunnerError> {
        let count = i64::try_from(records.len()).expect("bounded by MACHINE_PROPOSAL_BYTES_MAX");
        let last = self.log.append(records.clone()).await?;
        let base = Offset(last.0 + 1 - count);
        if base < self.next {
            let reason =
                format!("records landed at {base}, the machine already holds everything below {}", self.next);
            return Err(RunnerError::Replay { offset: base, reason });
        }
        for (offset, record) in (base.0..).zip(&records) {
            self.replay(Offset(offset), record)?;
        }
        Ok(())
    }

    /// Takes a snapshot if enough came behind the last one. What the machine holds is committed, so it may be taken between any two
    /// requests, also while the outcome of one is open: that is decided by records from `next` on.
    ///
    /// Requests wait meanwhile, for the encoding (a microsecond or two a topic, on this core) and for the log, which syncs a file of
    /// that size. One that fails costs nothing but the log's length; it is tried again when as much came again.
    pub(super) async fn snapshot_if_due(&mut self) {
        if !self.growth.is_due() {
            return;
        }
        let behind = std::mem::take(&mut self.growth.behind);
        let (offset, records) = (self.next, self.machine.snapshot());
        let (count, bytes) = (records.len(), bytes_of(&records));
        match self.log.save_snapshot(MachineSnapshot { offset, records }).await {
            Ok(()) => {
                self.growth.snapshot = bytes;
                tracing::info!(%offset, records = count, bytes, behind, "snapshot of a replicated machine");
            }
            Err(error) => {
                tracing::warn!(%error, %offset, "no snapshot of a replicated machine; its log stays as long");
            }
        }
    }
}

fn bytes_of(records: &[Vec<u8>]) -> u64 {
    records.iter().map(|record| record.len() as u64).sum()
}
