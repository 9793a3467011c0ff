//! What the journal says of frames, told on to the logs that their entries are of and to whoever listens.

use std::rc::Weak;

use super::core_storage::{Durable, Inner};
use super::log::LogId;
use crate::journal::{FileSerial, JournalObserver, Note, NoteKind, PoisonReason};

impl JournalObserver for Inner {
    fn frame_durable(&self, serial: FileSerial, notes: &[Note]) {
        let mut reports = self.reports.take();
        // Logs whose run of references is journalled, and logs of which something may go on.
        let (mut journalled, mut ready) = (Vec::new(), Vec::new());
        let mut has_cut = false;
        {
            let mut core = self.core.borrow_mut();
            self.flush.sample(core.tail.newest_stamp(), self.io.monotonic_now());
            for note in notes {
                let id = LogId::from_token(note.token);
                let Some(log) = core.log_mut(id) else {
                    if note.kind == NoteKind::Delete && core.note_delete_durable(id) {
                        self.work.notify();
                    }
                    continue;
                };
                if !self.is_ephemeral {
                    log.note_presence(serial);
                }
                let end_offset = match note.kind {
                    NoteKind::Reference { .. } => {
                        if log.bypass.note_journalled(note.sequence) {
                            journalled.push(id);
                        }
                        continue;
                    }
                    NoteKind::Data { end } => log.note_data_durable(note.sequence, end),
                    NoteKind::HardState => None,
                    NoteKind::LogStart => {
                        log.starts.note_durable(note.sequence);
                        core.retiring.insert(id);
                        None
                    }
                    NoteKind::Truncate => {
                        log.cuts.note_durable(note.sequence);
                        has_cut = true;
                        None
                    }
                    NoteKind::Begin { start } => {
                        log.cuts.note_durable(note.sequence);
                        log.note_durable(start);
                        has_cut = true;
                        None
                    }
                    NoteKind::Delete | NoteKind::SyncedTo | NoteKind::Carried => continue,
                };
                if core.log_mut(id).is_some_and(|log| log.bypass.note_durable()) {
                    ready.push(id);
                }
                reports.push(Durable { log: id, sequence: note.sequence, end_offset });
            }
        }
        if has_cut {
            self.life.notify();
        }
        self.retire();
        self.report(&reports);
        reports.clear();
        self.reports.replace(reports);
        if let Some(this) = self.this.get().and_then(Weak::upgrade) {
            journalled.into_iter().for_each(|id| this.end_bypass(id));
            ready.into_iter().for_each(|id| this.pump(id));
        }
    }

    fn file_filled(&self) {
        self.flush.note_file_filled(self.io.monotonic_now());
        self.work.notify();
    }

    fn file_failed(&self) {
        self.file_system.note_failure();
    }

    fn poisoned(&self, _reason: &PoisonReason) {
        self.tell_poison(None);
        self.turn.notify();
        self.life.notify();
    }
}
