//! The first frames of a new generation: what each partition brings along. Written and synced before the manifest names it;
//! the files' names are the caller's to sync, once for all cores.

use std::path::{Path, PathBuf};

use ringlog_io::{AlignedBuffer, Io, WriteSync};

use super::run::RecoveryError;
use crate::journal::entry::{Entry, EntryBody};
use crate::journal::format::file_name;
use crate::journal::frame::{FrameBuilder, FrameOrigin};
use crate::journal::writer::create_file;
use crate::journal::{JournalFileInfo, JournalPlace, JournalSettings};
use crate::limits::{JOURNAL_FIRST_FILE_BYTES_MAX, JOURNAL_FRAME_BODY_BYTES_MAX};
use crate::storage::cover::synced_to_of;
use crate::storage::recovered::RecoveredPartition;

/// Writes one core's first journal file, or as many as its partitions need, and advances their sequences.
pub(super) async fn write_core(
    io: &Io,
    directory: &Path,
    origin: FrameOrigin,
    partitions: &mut [RecoveredPartition],
    settings: &JournalSettings,
) -> Result<(JournalPlace, Vec<JournalFileInfo>), RecoveryError> {
    let mut writer = Writer {
        io,
        directory,
        origin,
        file_bytes: settings.file_bytes.min(JOURNAL_FIRST_FILE_BYTES_MAX),
        next_frame: 1,
        builder: FrameBuilder::new(AlignedBuffer::new()),
        open: None,
        files: Vec::new(),
    };
    for partition in partitions.iter_mut() {
        let key = partition.key;
        if let Some(state) = &partition.hard_state {
            let sequence = partition.hard_state_sequence;
            writer
                .push(&Entry { key, sequence, carried: true, body: EntryBody::HardState { state } })
                .await?;
        }
        if let Some(sequence) = partition.log_start_sequence {
            let body = EntryBody::LogStart { offset: partition.log_start };
            writer.push(&Entry { key, sequence, carried: true, body }).await?;
        }
        let body = EntryBody::SyncedTo(synced_to_of(partition));
        writer.push(&Entry { key, sequence: partition.next_sequence, carried: false, body }).await?;
        partition.next_sequence += 1;
    }
    writer.finish().await
}

struct OpenFile {
    file: ringlog_io::File,
    path: PathBuf,
    position: u64,
    first_frame: u64,
}

struct Writer<'a> {
    io: &'a Io,
    directory: &'a Path,
    origin: FrameOrigin,
    file_bytes: u64,
    next_frame: u64,
    builder: FrameBuilder,
    open: Option<OpenFile>,
    files: Vec<JournalFileInfo>,
}

impl Writer<'_> {
    async fn push(&mut self, entry: &Entry<'_>) -> Result<(), RecoveryError> {
        let body_bytes_max =
            JOURNAL_FRAME_BODY_BYTES_MAX.min(usize::try_from(self.file_bytes / 4).unwrap_or(usize::MAX));
        if self.builder.body_bytes() + entry.encoded_bytes() > body_bytes_max {
            self.write_frame().await?;
        }
        self.builder.push(entry);
        Ok(())
    }

    async fn write_frame(&mut self) -> Result<(), RecoveryError> {
        let frame_bytes = self.builder.frame_bytes();
        if self.open.as_ref().is_some_and(|open| open.position + frame_bytes > self.file_bytes) {
            self.close_file();
        }
        if self.open.is_none() {
            self.open_file().await?;
        }
        let open = self.open.as_mut().expect("a file was just opened");
        let builder = std::mem::replace(&mut self.builder, FrameBuilder::new(AlignedBuffer::new()));
        let buffer = builder.seal(self.origin, self.next_frame, 1);
        let (result, _) = self.io.write_direct(&open.file, open.position, buffer, WriteSync::Data).await;
        result.map_err(|source| RecoveryError::Io { path: open.path.clone(), source })?;
        open.position += frame_bytes;
        self.next_frame += 1;
        Ok(())
    }

    async fn open_file(&mut self) -> Result<(), RecoveryError> {
        let number =
            u32::try_from(self.files.len()).expect("memory holds fewer partitions than fill so many files");
        let path = self.directory.join(file_name(self.origin.core, number));
        let file = create_file(self.io, &path, self.file_bytes)
            .await
            .map_err(|source| RecoveryError::Io { path: path.clone(), source })?;
        self.open = Some(OpenFile { file, path, position: 0, first_frame: self.next_frame });
        Ok(())
    }

    fn close_file(&mut self) {
        if let Some(OpenFile { path, position, first_frame, .. }) = self.open.take() {
            self.files.push(JournalFileInfo { path, bytes: self.file_bytes, position, first_frame });
        }
    }

    async fn finish(mut self) -> Result<(JournalPlace, Vec<JournalFileInfo>), RecoveryError> {
        if self.builder.entry_count() > 0 {
            self.write_frame().await?;
        }
        if self.open.is_none() {
            self.open_file().await?;
        }
        self.close_file();
        let place = JournalPlace {
            directory: self.directory.to_owned(),
            origin: self.origin,
            next_frame: self.next_frame,
        };
        Ok((place, self.files))
    }
}
