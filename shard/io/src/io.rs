//! The handle of one executor: tasks, time, sockets and files for everything above. A thin shell over operations;
//! holds no state of its own.

use std::any::Any;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use crate::aligned::{ALIGNMENT_BYTES, AlignedBuffer};
use crate::clock::Monotonic;
use crate::driver::DriverStats;
use crate::executor::Core;
use crate::features::FeatureSet;
use crate::file::{File, FileLock};
use crate::notify::Notifier;
use crate::operation::{FileOperation, Operation, OperationFuture, Returned};
use crate::options::{DirectoryEntry, ListenOptions, OpenOptions, SpaceInfo, WriteSync};
use crate::socket::{HangUp, Listener, Socket, SocketTransfer};
use crate::task::{Priority, Task};
use crate::timers::TimerKey;

/// The way to everything outside the core. A clone is cheap and belongs to the same executor; it never leaves the thread.
///
/// Every future may be dropped: its buffers stay with the driver until the operation has ended. A dropped *receive*
/// may have taken bytes off the socket that nobody sees any more, so never race one against another future unless the
/// connection ends with it. Writes, syncs and sends run to their end.
#[derive(Clone)]
pub struct Io {
    core: Rc<Core>,
}

impl std::fmt::Debug for Io {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Io").field("driver", &self.driver_name()).finish_non_exhaustive()
    }
}

/// Tasks and time.
impl Io {
    pub(crate) fn new(core: Rc<Core>) -> Self {
        Self { core }
    }

    /// Starts a task on this core.
    pub fn spawn<T: 'static>(&self, priority: Priority, task: impl Future<Output = T> + 'static) -> Task<T> {
        self.core.spawn(priority, task)
    }

    /// Completes at or after `deadline`; at once when it has passed.
    pub fn sleep_until(&self, deadline: Monotonic) -> Sleep {
        Sleep { core: Rc::clone(&self.core), deadline, key: None }
    }

    /// Completes after `duration` from now.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        self.sleep_until(self.monotonic_now() + duration)
    }

    /// Lets every task that is ready run first.
    pub fn yield_now(&self) -> YieldNow {
        YieldNow { yielded: false }
    }

    /// The monotonic clock.
    pub fn monotonic_now(&self) -> Monotonic {
        self.core.now()
    }

    /// The wall clock, in milliseconds since the Unix epoch. It jumps; never subtract two readings.
    pub fn wall_now_ms(&self) -> i64 {
        self.core.driver.borrow().wall_now_ms()
    }

    /// A random number, from the seed when there is one. Not for secrets.
    pub fn random_u64(&self) -> u64 {
        self.core.driver.borrow_mut().random_u64()
    }

    /// A hasher whose seeds come from [`Io::random_u64`].
    pub fn hasher(&self) -> ahash::RandomState {
        let mut driver = self.core.driver.borrow_mut();
        ahash::RandomState::with_seeds(
            driver.random_u64(),
            driver.random_u64(),
            driver.random_u64(),
            driver.random_u64(),
        )
    }

    /// Runs a job on a worker thread. A panic of the job goes on here.
    pub async fn compute<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let job = Box::new(move || match catch_unwind(AssertUnwindSafe(job)) {
            Ok(value) => Ok(Box::new(value) as Box<dyn Any + Send>),
            Err(panic) => Err(panic),
        });
        match self.submit(Operation::Compute { job }).await {
            (_, Returned::Job(Ok(value))) => *value.downcast::<T>().expect("a job yields its own type"),
            (_, Returned::Job(Err(panic))) => resume_unwind(panic),
            (result, _) => panic!("no worker thread runs: {result:?}"),
        }
    }

    /// Wakes this executor from any thread.
    pub fn notifier(&self) -> Notifier {
        self.core.driver.borrow().notifier()
    }

    /// Adds a hook that runs in every turn of the loop and once more before it sleeps; true = it found work. It must
    /// be quick and must not block. It lives as long as the executor.
    pub fn on_poll(&self, hook: impl FnMut() -> bool + 'static) {
        self.core.add_hook(Box::new(hook));
    }

    /// The counters of this executor.
    pub fn stats(&self) -> DriverStats {
        self.core.stats()
    }

    /// `io_uring`, `epoll` or `sim`.
    pub fn driver_name(&self) -> &'static str {
        self.core.driver.borrow().name()
    }

    /// What the kernel can do and the operator allows, for the banner.
    pub fn features(&self) -> FeatureSet {
        self.core.driver.borrow().features()
    }

    async fn submit(&self, operation: Operation) -> (io::Result<u64>, Returned) {
        OperationFuture::submit(&self.core, operation).await
    }

    async fn file_operation(&self, operation: FileOperation) -> io::Result<u64> {
        self.submit(Operation::File(operation)).await.0
    }
}

/// Sockets.
impl Io {
    /// Binds and listens.
    ///
    /// # Errors
    /// `AddrInUse` when another process listens there (with `probe_plain_bind` even if it shares the port).
    pub fn listen(&self, address: SocketAddr, options: &ListenOptions) -> io::Result<Listener> {
        self.core.driver.borrow_mut().listen(address, options)
    }

    /// The next connection.
    ///
    /// # Errors
    /// What accept(2) answers; out of descriptors (`EMFILE`) passes when connections close, so wait before trying again.
    pub async fn accept(&self, listener: &Listener) -> io::Result<(Socket, SocketAddr)> {
        match self.submit(Operation::Accept { listener: listener.handle.clone() }).await {
            (Ok(_), Returned::Socket(handle, address)) => Ok((Socket::new(handle), address)),
            (result, _) => Err(unanswered(result)),
        }
    }

    /// A new connection.
    ///
    /// # Errors
    /// What connect(2) answers.
    pub async fn connect(&self, address: SocketAddr) -> io::Result<Socket> {
        match self.submit(Operation::Connect { address }).await {
            (Ok(_), Returned::Socket(handle, _)) => Ok(Socket::new(handle)),
            (result, _) => Err(unanswered(result)),
        }
    }

    /// Whatever has arrived, at most [`crate::RECEIVE_SOME_BYTES_MAX`]; empty when the peer has closed. While it
    /// waits it pins no buffer.
    ///
    /// # Errors
    /// What recv(2) answers.
    pub async fn recv_some(&self, socket: &Socket) -> io::Result<Bytes> {
        match self.submit(Operation::ReceiveSome { socket: socket.handle.clone() }).await {
            (Ok(_), Returned::Bytes(bytes)) => Ok(bytes),
            (result, _) => Err(unanswered(result)),
        }
    }

    /// Appends at most `max_bytes` of what arrives to the buffer, which grows by no more than that. 0 = closed.
    ///
    /// # Errors
    /// What recv(2) answers. The buffer comes back either way.
    pub async fn recv_into(
        &self,
        socket: &Socket,
        mut buffer: BytesMut,
        max_bytes: usize,
    ) -> (io::Result<usize>, BytesMut) {
        buffer.reserve(max_bytes);
        let operation = Operation::ReceiveInto { socket: socket.handle.clone(), buffer, max_bytes };
        match self.submit(operation).await {
            (result, Returned::Buffer(buffer)) => (result.map(as_usize), buffer),
            (result, _) => (Err(unanswered(result)), BytesMut::new()),
        }
    }

    /// Sends all pieces, in order.
    ///
    /// # Errors
    /// What send(2) answers; the stream is broken then.
    pub async fn send(&self, socket: &Socket, pieces: Vec<Bytes>) -> io::Result<()> {
        self.submit(Operation::Send { socket: socket.handle.clone(), pieces }).await.0.map(|_| ())
    }

    /// Sends what the socket takes at once; the bytes sent, or `WouldBlock`.
    ///
    /// # Errors
    /// What sendmsg(2) answers.
    pub fn try_send(&self, socket: &Socket, pieces: &[Bytes]) -> io::Result<usize> {
        self.core.driver.borrow_mut().try_send(&socket.handle, pieces)
    }

    /// Completes when the socket takes bytes again, or is closed.
    ///
    /// # Errors
    /// What poll(2) answers.
    pub async fn writable(&self, socket: &Socket) -> io::Result<()> {
        self.submit(Operation::WaitWritable { socket: socket.handle.clone() }).await.0.map(|_| ())
    }

    /// Completes when the peer sends no more: it closed, shut its direction down, or reset the connection. Takes no byte
    /// and needs none to be read first, so it may be raced against anything. Submitted at once, not at the first poll.
    ///
    /// # Errors
    /// What poll(2) answers.
    pub fn hung_up(&self, socket: &Socket) -> impl Future<Output = io::Result<HangUp>> + use<> {
        let waiting =
            OperationFuture::submit(&self.core, Operation::WaitHangUp { socket: socket.handle.clone() });
        async move {
            let (result, _) = waiting.await;
            result.map(|broken| if broken == 0 { HangUp::Finished } else { HangUp::Broken })
        }
    }

    /// Sends bytes of a file as the socket takes them, without copying them to user space.
    ///
    /// # Errors
    /// `UnexpectedEof` when the file ends before; what sendfile(2) answers. Either way the stream is broken.
    pub async fn send_file(
        &self,
        socket: &Socket,
        file: &File,
        position: u64,
        length: u64,
    ) -> io::Result<()> {
        let mut position = position;
        let mut left = length;
        while left > 0 {
            let sent = self.core.driver.borrow_mut().try_send_file(&socket.handle, file, position, left);
            match sent {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    position += count;
                    left = left.saturating_sub(count);
                    if left > 0 {
                        // A fast peer must not keep the core from everybody else.
                        self.yield_now().await;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable(socket).await?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Bytes of the range that are in the page cache; `None` where the kernel cannot tell.
    pub fn cached_bytes(&self, file: &File, position: u64, length: u64) -> Option<u64> {
        self.core.driver.borrow_mut().cached_bytes(file, position, length)
    }

    /// Takes over a socket that another core gave away.
    pub fn adopt(&self, transfer: SocketTransfer) -> Socket {
        Socket::new(transfer.handle)
    }
}

/// Files.
impl Io {
    /// Opens a file.
    ///
    /// # Errors
    /// What open(2) answers.
    pub async fn open(&self, path: &Path, options: OpenOptions) -> io::Result<File> {
        self.open_with(FileOperation::Open { path: path.to_owned(), options }).await
    }

    async fn open_with(&self, operation: FileOperation) -> io::Result<File> {
        match self.submit(Operation::File(operation)).await {
            (Ok(_), Returned::File(file)) => Ok(file),
            (result, _) => Err(unanswered(result)),
        }
    }

    /// Reads up to `length` bytes; fewer only at the end of the file.
    ///
    /// # Errors
    /// What read(2) answers.
    pub async fn read_at(&self, file: &File, position: u64, length: usize) -> io::Result<Bytes> {
        self.read(file, position, length, false).await
    }

    /// The same, leaving nothing behind in the page cache where the kernel and the file system can (`RWF_DONTCACHE`).
    ///
    /// # Errors
    /// What read(2) answers.
    pub async fn read_at_uncached(&self, file: &File, position: u64, length: usize) -> io::Result<Bytes> {
        self.read(file, position, length, true).await
    }

    async fn read(&self, file: &File, position: u64, length: usize, uncached: bool) -> io::Result<Bytes> {
        match self.submit(Operation::ReadAt { file: file.clone(), position, length, uncached }).await {
            (Ok(_), Returned::Bytes(bytes)) => Ok(bytes),
            (result, _) => Err(unanswered(result)),
        }
    }

    /// Writes all pieces, in order, through the page cache, on a worker.
    ///
    /// # Errors
    /// What pwritev(2) answers; part of it may be written then.
    pub async fn write_at(&self, file: &File, position: u64, pieces: Vec<Bytes>) -> io::Result<()> {
        self.file_operation(FileOperation::Write { file: file.clone(), position, pieces }).await.map(|_| ())
    }

    /// Writes a buffer past the page cache, durable on completion if `sync` says so. Position and length must be
    /// multiples of 4096. For a file that is not direct: buffered, then fdatasync.
    ///
    /// # Errors
    /// `InvalidInput` for a misaligned request; what write(2) answers. The buffer comes back either way.
    pub async fn write_direct(
        &self,
        file: &File,
        position: u64,
        buffer: AlignedBuffer,
        sync: WriteSync,
    ) -> (io::Result<()>, AlignedBuffer) {
        let aligned =
            position.is_multiple_of(ALIGNMENT_BYTES as u64) && buffer.len().is_multiple_of(ALIGNMENT_BYTES);
        if !aligned {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "a direct write needs multiples of 4096");
            return (Err(error), buffer);
        }
        let file = file.clone();
        let operation = if file.is_direct() {
            Operation::WriteDirect { file, position, buffer, sync }
        } else {
            Operation::File(FileOperation::WriteAligned { file, position, buffer, sync })
        };
        match self.submit(operation).await {
            (result, Returned::Aligned(buffer)) => (result.map(|_| ()), buffer),
            (result, _) => (Err(unanswered(result)), AlignedBuffer::new()),
        }
    }

    /// Makes the file's data durable (fdatasync). After an error trust nothing that was written since the last success.
    ///
    /// # Errors
    /// What fdatasync(2) answers.
    pub async fn sync_data(&self, file: &File) -> io::Result<()> {
        self.file_operation(FileOperation::SyncData { file: file.clone() }).await.map(|_| ())
    }

    /// Makes the file's data and metadata durable (fsync).
    ///
    /// # Errors
    /// What fsync(2) answers.
    pub async fn sync_all(&self, file: &File) -> io::Result<()> {
        self.file_operation(FileOperation::SyncAll { file: file.clone() }).await.map(|_| ())
    }

    /// Writes dirty pages of a range out and waits for them (sync_file_range). Makes nothing durable; it spreads the
    /// work that a later sync would do at once.
    ///
    /// # Errors
    /// What sync_file_range(2) answers.
    pub async fn start_write_out(&self, file: &File, position: u64, length: u64) -> io::Result<()> {
        let operation = FileOperation::StartWriteOut { file: file.clone(), position, length };
        self.file_operation(operation).await.map(|_| ())
    }

    /// Makes the file `length` bytes long.
    ///
    /// # Errors
    /// What ftruncate(2) answers.
    pub async fn truncate(&self, file: &File, length: u64) -> io::Result<()> {
        self.file_operation(FileOperation::Truncate { file: file.clone(), length }).await.map(|_| ())
    }

    /// Reserves disk space for a range; `keep_size` leaves the file's length alone.
    ///
    /// # Errors
    /// `StorageFull`; `Unsupported` on file systems that cannot.
    pub async fn allocate(&self, file: &File, position: u64, length: u64, keep_size: bool) -> io::Result<()> {
        let operation = FileOperation::Allocate { file: file.clone(), position, length, keep_size };
        self.file_operation(operation).await.map(|_| ())
    }

    /// The file's length in bytes.
    ///
    /// # Errors
    /// What fstat(2) answers.
    pub async fn file_length(&self, file: &File) -> io::Result<u64> {
        self.file_operation(FileOperation::Length { file: file.clone() }).await
    }

    /// Creates a directory and its parents; fine when it exists.
    ///
    /// # Errors
    /// What mkdir(2) answers.
    pub async fn create_directories(&self, path: &Path) -> io::Result<()> {
        self.file_operation(FileOperation::CreateDirectories { path: path.to_owned() }).await.map(|_| ())
    }

    /// Removes a file's name.
    ///
    /// # Errors
    /// What unlink(2) answers.
    pub async fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.file_operation(FileOperation::RemoveFile { path: path.to_owned() }).await.map(|_| ())
    }

    /// Removes a directory with everything in it.
    ///
    /// # Errors
    /// What the system answers; part of it may be gone then.
    pub async fn remove_directory_all(&self, path: &Path) -> io::Result<()> {
        self.file_operation(FileOperation::RemoveDirectoryAll { path: path.to_owned() }).await.map(|_| ())
    }

    /// Gives a file another name, replacing what had it. Durable only after [`Io::sync_directory`].
    ///
    /// # Errors
    /// What rename(2) answers.
    pub async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.file_operation(FileOperation::Rename { from: from.to_owned(), to: to.to_owned() })
            .await
            .map(|_| ())
    }

    /// Makes the names in a directory durable.
    ///
    /// # Errors
    /// What fsync(2) answers.
    pub async fn sync_directory(&self, path: &Path) -> io::Result<()> {
        self.file_operation(FileOperation::SyncDirectory { path: path.to_owned() }).await.map(|_| ())
    }

    /// The names in a directory, sorted.
    ///
    /// # Errors
    /// What readdir(3) answers.
    pub async fn list_directory(&self, path: &Path) -> io::Result<Vec<DirectoryEntry>> {
        match self.submit(Operation::File(FileOperation::ListDirectory { path: path.to_owned() })).await {
            (Ok(_), Returned::Entries(entries)) => Ok(entries),
            (result, _) => Err(unanswered(result)),
        }
    }

    /// Whether the path names anything.
    ///
    /// # Errors
    /// What stat(2) answers, other than that there is nothing.
    pub async fn path_exists(&self, path: &Path) -> io::Result<bool> {
        Ok(self.file_operation(FileOperation::PathExists { path: path.to_owned() }).await? != 0)
    }

    /// How large the file system of the path is and what an unprivileged user may still write on it.
    ///
    /// # Errors
    /// What statvfs(3) answers.
    pub async fn file_system_space(&self, path: &Path) -> io::Result<SpaceInfo> {
        let operation = FileOperation::FileSystemSpace { path: path.to_owned() };
        match self.submit(Operation::File(operation)).await {
            (Ok(_), Returned::Space(space)) => Ok(space),
            (result, _) => Err(unanswered(result)),
        }
    }

    /// Makes everything of the file's file system durable, and tells of every write-out that failed there since this
    /// file was opened or was last asked (syncfs), whosever it was. It may have much to write that is not ours.
    ///
    /// # Errors
    /// What syncfs(2) answers. An error is told once.
    pub async fn sync_file_system(&self, file: &File) -> io::Result<()> {
        self.file_operation(FileOperation::SyncFileSystem { file: file.clone() }).await.map(|_| ())
    }

    /// The whole content of a file. Only for files whose size we chose ourselves.
    ///
    /// # Errors
    /// What open(2) and read(2) answer.
    pub async fn read_file(&self, path: &Path) -> io::Result<Vec<u8>> {
        let file = self.open(path, OpenOptions::READ).await?;
        let length = self.file_length(&file).await?;
        let length = usize::try_from(length).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        Ok(Vec::from(self.read_at(&file, 0, length).await?))
    }

    /// Writes what a file shall hold beside it, as `<path>.new`, and syncs it; answers that name. It counts once it is
    /// renamed to `path`, and for good once the directory is synced: one sync serves all names of the directory.
    ///
    /// # Errors
    /// Of the first step that failed; the file itself was not touched.
    pub async fn write_beside(&self, path: &Path, content: Vec<u8>) -> io::Result<PathBuf> {
        let mut fresh = path.as_os_str().to_owned();
        fresh.push(".new");
        let fresh = PathBuf::from(fresh);
        let file = self.open(&fresh, OpenOptions::READ_WRITE_CREATE.with_truncate()).await?;
        self.write_at(&file, 0, vec![Bytes::from(content)]).await?;
        self.sync_all(&file).await?;
        Ok(fresh)
    }

    /// Replaces a file so that a crash leaves the old content or the new one: writes `<path>.new`, fsync, rename,
    /// fsync of the directory.
    ///
    /// # Errors
    /// Of the first step that failed; the old content is still there unless the last one failed.
    pub async fn replace_file(&self, path: &Path, content: Vec<u8>) -> io::Result<()> {
        let fresh = self.write_beside(path, content).await?;
        self.rename(&fresh, path).await?;
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        self.sync_directory(directory.unwrap_or(Path::new("."))).await
    }

    /// Locks a file, created when missing, until the lock is dropped or the process dies.
    ///
    /// # Errors
    /// `WouldBlock` when somebody holds it.
    pub async fn lock_file(&self, path: &Path) -> io::Result<FileLock> {
        Ok(FileLock::new(self.open_with(FileOperation::Lock { path: path.to_owned() }).await?))
    }
}

/// The error of an operation that did not bring what a success brings.
fn unanswered(result: io::Result<u64>) -> io::Error {
    result.err().unwrap_or_else(|| io::Error::other("the driver returned nothing"))
}

fn as_usize(count: u64) -> usize {
    usize::try_from(count).expect("a count of bytes in memory")
}

/// A sleeping task; see [`Io::sleep_until`].
pub struct Sleep {
    core: Rc<Core>,
    deadline: Monotonic,
    key: Option<TimerKey>,
}

impl Sleep {
    /// When it completes.
    pub fn deadline(&self) -> Monotonic {
        self.deadline
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if let Some(key) = self.key {
            if self.core.timers.borrow_mut().update(key, context.waker()) {
                return Poll::Pending;
            }
            self.key = None;
            return Poll::Ready(());
        }
        if self.core.now() >= self.deadline {
            return Poll::Ready(());
        }
        let key = self.core.timers.borrow_mut().insert(self.deadline, context.waker().clone());
        self.key = Some(key);
        self.core.nudge();
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let waker = self.core.timers.borrow_mut().remove(key);
            drop(waker);
        }
    }
}

/// See [`Io::yield_now`].
#[derive(Debug)]
pub struct YieldNow {
    yielded: bool,
}

impl Future for YieldNow {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}
