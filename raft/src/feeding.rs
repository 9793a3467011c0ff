//! How a leader feeds its members: probing, streaming within bounds, asking again for what was lost. Never decides what is committed.

use std::sync::Arc;

use ringlog_protocol::ids::Offset;

use crate::configuration::Configuration;
use crate::effect::{Effect, Replicate};
use crate::group::{Group, Role};
use crate::ids::{ReplicaId, Round};
use crate::message::{Append, AppendEpochs, Body};
use crate::progress::{Flow, Probe, Reading, UNVERIFIED, VERIFIED};
use crate::settings::Settings;

impl Group {
    pub(crate) fn feed_all(&mut self, effects: &mut Vec<Effect>) {
        let members = self.leading.as_ref().map_or(0, |leading| leading.progress.len());
        for place in 0..members {
            self.feed(place, effects);
        }
    }

    /// Sends to one member what it lacks, as far as its flow allows.
    pub(crate) fn feed(&mut self, place: usize, effects: &mut Vec<Effect>) {
        let (log_start, in_force) = (self.log.start, self.durable.configuration_version);
        let end = self.sendable_end();
        let Settings { message_bytes_max, in_flight_bytes_max, .. } = *self.settings;
        let Some(progress) = self.progress_mut(place) else { return };
        let (next, reading) = (progress.next, progress.reading);
        match progress.flow {
            Flow::Copying { .. }
            | Flow::Probing { sent: Some(_), .. }
            | Flow::Probing { paused: true, .. } => {}
            Flow::Probing { .. } | Flow::Streaming if next < log_start => self.offer_copy(place, effects),
            Flow::Probing { verified, .. } => {
                if verified && next < end {
                    if reading == Reading::Idle {
                        self.probe_with_records(place, effects);
                    }
                } else {
                    self.probe(place, effects);
                }
            }
            Flow::Streaming => {
                let bytes_max = progress.budget_bytes(message_bytes_max, in_flight_bytes_max);
                if next < end && reading == Reading::Idle && bytes_max > 0 {
                    let round = self.leading.as_ref().map_or(Round(0), |leading| leading.round);
                    self.replicate(place, bytes_max, round, effects);
                } else if next == end && progress.version.max(progress.version_sent) < in_force {
                    self.ask_position(place, effects);
                }
            }
        }
    }

    /// Records beyond the place where a configuration was made leave with that configuration or not at all, and a configuration
    /// leaves only once it is durable here. So whoever acknowledges such a record holds the configuration too. Otherwise this leader
    /// could come back with the newer configuration and without records that the others committed, and win by it.
    fn sendable_end(&self) -> Offset {
        let durable = self.durable.configuration_version;
        let kept = self.leading.iter().flat_map(|leading| &leading.configurations);
        let unsent = kept.filter(|configuration| configuration.version > durable);
        unsent.map(|configuration| configuration.position).fold(self.log.end, Offset::min)
    }

    /// Asks whether the logs agree below `next`.
    fn probe(&mut self, place: usize, effects: &mut Vec<Effect>) {
        let now = self.clock.now();
        let Some(leading) = &mut self.leading else { return };
        let round = leading.begin_round();
        let Some(progress) = leading.progress.get_mut(place) else { return };
        let (base, to) = (progress.next, progress.replica);
        let sent = Some(Probe { round, end: Some(base), at: now });
        progress.flow = Flow::Probing { sent, paused: false, verified: false };
        let append = self.append_header(place, base, base, round);
        effects.push(self.send(to, Body::Append(append)));
    }

    /// One message with records, its answer awaited before the next.
    fn probe_with_records(&mut self, place: usize, effects: &mut Vec<Effect>) {
        let (now, bytes_max) = (self.clock.now(), self.settings.message_bytes_max);
        let Some(leading) = &mut self.leading else { return };
        let round = leading.begin_round();
        let Some(progress) = leading.progress.get_mut(place) else { return };
        let sent = Some(Probe { round, end: None, at: now });
        progress.flow = Flow::Probing { sent, paused: false, verified: true };
        self.replicate(place, bytes_max, round, effects);
    }

    fn replicate(&mut self, place: usize, bytes_max: u32, round: Round, effects: &mut Vec<Effect>) {
        let (term, end) = (self.hard_state.term, self.sendable_end());
        let Some(progress) = self.progress_mut(place) else { return };
        progress.reading = Reading::Wanted;
        let (to, base) = (progress.replica, progress.next);
        let header = self.append_header(place, base, end, round);
        effects.push(Effect::Replicate(Replicate { to, term, bytes_max, header }));
    }

    /// An append without records at the end of what was sent: it carries configurations, and its answer tells what was lost.
    pub(crate) fn ask_position(&mut self, place: usize, effects: &mut Vec<Effect>) {
        let (now, in_force) = (self.clock.now(), self.durable.configuration_version);
        let Some(leading) = &mut self.leading else { return };
        let round = leading.round;
        let Some(progress) = leading.progress.get_mut(place) else { return };
        progress.advanced = now;
        let (base, to) = (progress.next, progress.replica);
        let append = self.append_header(place, base, base, round);
        effects.push(self.send(to, Body::Append(append)));
        if let Some(progress) = self.progress_mut(place) {
            progress.version_sent = in_force;
        }
    }

    /// The log start moved: members that have everything would hear of it with the next record only, and keep for so long what was let
    /// go here. The others hear it with what they lack.
    pub(crate) fn tell_log_start(&mut self, effects: &mut Vec<Effect>) {
        let members = self.leading.as_ref().map_or(0, |leading| leading.progress.len());
        for place in 0..members {
            let (log_start, end) = (self.log.start, self.sendable_end());
            let Some(progress) = self.progress_mut(place) else { continue };
            let has_all = progress.flow == Flow::Streaming && progress.reading == Reading::Idle;
            if has_all && progress.next == end && end >= log_start {
                self.ask_position(place, effects);
            }
        }
    }

    fn append_header(&self, place: usize, base: Offset, end: Offset, round: Round) -> Append {
        let election_end = match self.role {
            Role::Leader { election_end } => election_end,
            Role::Candidate | Role::Follower { .. } => unreachable!("only a leader sends appends"),
        };
        Append {
            election_end,
            previous_epoch: self.log.epoch_before(base),
            base,
            end,
            epochs: AppendEpochs::default(),
            configurations: self.configurations_for(place),
            high_watermark: self.high_watermark,
            log_start: self.log.start,
            round,
        }
    }

    /// The configurations that a member may not hold, as far as they are durable here. None, and no allocation, in the steady
    /// state.
    fn configurations_for(&self, place: usize) -> Vec<Arc<Configuration>> {
        let Some(leading) = &self.leading else { return Vec::new() };
        let Some(progress) = leading.progress.get(place) else { return Vec::new() };
        let known = if progress.matched.is_some() { progress.version } else { 0 };
        let durable = self.durable.configuration_version;
        let news = |configuration: &&Arc<Configuration>| {
            let version = configuration.version;
            version <= durable && (version > known || progress.matched.is_none())
        };
        leading.configurations.iter().filter(news).cloned().collect()
    }

    pub(crate) fn replicated(&mut self, to: ReplicaId, end: Offset, bytes: u32, effects: &mut Vec<Effect>) {
        let (now, log_end) = (self.clock.now(), self.log.end);
        let Some(place) = self.place_in_progress(to) else { return };
        let Some(progress) = self.progress_mut(place) else { return };
        let wanted = std::mem::replace(&mut progress.reading, Reading::Idle) == Reading::Wanted;
        // An answer to a leader of an earlier term may come late: it never moves the position beyond this log.
        if wanted && end > progress.next && end <= log_end {
            match &mut progress.flow {
                Flow::Streaming => progress.sent(end, bytes),
                Flow::Probing { sent: Some(probe), .. } => {
                    probe.end = Some(end);
                    probe.at = now;
                }
                Flow::Probing { .. } | Flow::Copying { .. } => {}
            }
        }
        self.feed(place, effects);
    }

    pub(crate) fn replicate_failed(&mut self, to: ReplicaId) {
        let Some(place) = self.place_in_progress(to) else { return };
        let Some(progress) = self.progress_mut(place) else { return };
        if std::mem::replace(&mut progress.reading, Reading::Idle) == Reading::Wanted
            && !matches!(progress.flow, Flow::Copying { .. })
        {
            let flow = if progress.matched.is_some() { VERIFIED } else { UNVERIFIED };
            progress.begin_anew(progress.matched.unwrap_or(progress.next), flow);
            progress.pause();
        }
    }

    /// What was lost on the way is asked for again.
    pub(crate) fn retry(&mut self, place: usize, effects: &mut Vec<Effect>) {
        let (now, log_end) = (self.clock.now(), self.log.end);
        let Settings { heartbeat_interval, election_timeout, .. } = *self.settings;
        let since = |then| self.clock.since(then);
        let Some(progress) = self.leading.as_ref().and_then(|leading| leading.progress.get(place)) else {
            return;
        };
        let stalled = since(progress.advanced) >= 2 * heartbeat_interval;
        let lacks = progress.matched.is_none_or(|matched| matched < progress.next)
            || progress.version < progress.version_sent;
        let asks = progress.flow == Flow::Streaming && stalled && lacks && progress.reading == Reading::Idle;
        let flow = match progress.flow {
            Flow::Probing { sent: Some(probe), verified, .. }
                if since(probe.at) >= 2 * heartbeat_interval =>
            {
                Some(Flow::Probing { sent: None, paused: false, verified })
            }
            Flow::Probing { sent: None, verified, .. } => {
                Some(Flow::Probing { sent: None, paused: false, verified })
            }
            Flow::Copying { since: then } if since(then) >= election_timeout => Some(UNVERIFIED),
            Flow::Probing { .. } | Flow::Copying { .. } | Flow::Streaming => None,
        };
        if asks {
            self.ask_position(place, effects);
        }
        if let Some(progress) = self.progress_mut(place) {
            progress.look(log_end, now);
            if let Some(flow) = flow {
                if progress.reading == Reading::Wanted {
                    progress.reading = Reading::Discarded;
                }
                progress.flow = flow;
            }
        }
    }
}
