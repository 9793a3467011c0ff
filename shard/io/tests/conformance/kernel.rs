//! What only a real kernel has: threads, descriptors, the page cache, several executors.

use std::future::Future;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ringlog_io::{
    AlignedBuffer, Executor, Feature, ListenOptions, OpenOptions, Priority, SocketTransfer, WriteSync,
    allowed_cpus,
};

use crate::network::{pair, pattern, receive};
use crate::{Case, Env, case};

pub const CASES: &[Case] = &[
    case!(notifier_wakes_from_another_thread),
    case!(wakers_wake_from_another_thread),
    case!(sockets_move_between_executors),
    case!(many_connections_echo_to_another_thread),
    case!(no_descriptor_leaks),
    case!(cached_bytes_are_counted),
    case!(direct_falls_back_on_memory_file_systems),
    case!(an_idle_executor_uses_no_cpu),
    case!(an_executor_pins_its_thread),
    case!(a_receive_buffer_is_set_only_where_allowed),
    case!(a_panic_of_a_job_reaches_its_caller),
];

async fn notifier_wakes_from_another_thread(env: Env) {
    let counter = Arc::new(AtomicU64::new(0));
    let notifier = env.io.notifier();
    let (seen, arrived) = (counter.clone(), std::rc::Rc::new(std::cell::Cell::new(0_u64)));
    let waiting: std::rc::Rc<std::cell::Cell<Option<Waker>>> = std::rc::Rc::default();
    env.io.on_poll({
        let (arrived, waiting) = (arrived.clone(), waiting.clone());
        move || {
            let now = seen.load(Ordering::Acquire);
            if now == arrived.get() {
                return false;
            }
            arrived.set(now);
            if let Some(waker) = waiting.take() {
                waker.wake();
            }
            true
        }
    });
    let sender = std::thread::spawn({
        let counter = counter.clone();
        move || {
            for round in 0..2_000_u64 {
                counter.fetch_add(1, Ordering::Release);
                notifier.notify();
                // Sometimes long enough for the executor to sleep, sometimes not.
                if round % 3 == 0 {
                    std::thread::sleep(Duration::from_micros(round % 90));
                }
            }
        }
    });
    std::future::poll_fn(|context| {
        if arrived.get() == 2_000 {
            return Poll::Ready(());
        }
        waiting.set(Some(context.waker().clone()));
        Poll::Pending
    })
    .await;
    sender.join().expect("no panic");
}

async fn wakers_wake_from_another_thread(env: Env) {
    for round in 0..200_u64 {
        let ready = Arc::new(AtomicBool::new(false));
        let task = env.io.spawn(Priority::Foreground, {
            let ready = ready.clone();
            let mut started = false;
            std::future::poll_fn(move |context| {
                if ready.load(Ordering::Acquire) {
                    return Poll::Ready(());
                }
                if !started {
                    started = true;
                    let (ready, waker) = (ready.clone(), context.waker().clone());
                    std::thread::spawn(move || {
                        std::thread::sleep(Duration::from_micros(round % 50));
                        ready.store(true, Ordering::Release);
                        waker.wake();
                    });
                }
                Poll::Pending
            })
        });
        task.await;
    }
}

async fn sockets_move_between_executors(env: Env) {
    let (client, server) = pair(&env).await;
    let (to_second, second) = mpsc::channel::<SocketTransfer>();
    let (to_first, first) = mpsc::channel::<SocketTransfer>();
    let config = env.config.clone();
    let thread = std::thread::spawn(move || {
        let executor = Executor::new(config).expect("a second executor");
        let io = executor.io();
        executor.run(async move {
            for transfer in second {
                let socket = io.adopt(transfer);
                let request = receive(&io, &socket, 5).await;
                io.send(&socket, vec![Bytes::from(request)]).await.expect("send");
                to_first.send(socket.into_transfer()).expect("the first executor waits");
            }
        });
    });
    let mut server = server;
    for round in 0..10 {
        let message = pattern(5, round);
        env.io.send(&client, vec![message.clone()]).await.expect("send");
        assert_eq!(receive(&env.io, &server, 5).await, message);
        to_second.send(server.into_transfer()).expect("the second executor waits");
        env.io.send(&client, vec![message.clone()]).await.expect("send");
        assert_eq!(receive(&env.io, &client, 5).await, message);
        let back = env.io.compute({
            let received = first.recv().expect("the second executor answers");
            move || received
        });
        server = env.io.adopt(back.await);
    }
    drop(to_second);
    thread.join().expect("no panic");
}

fn open_descriptors() -> Vec<String> {
    let mut targets = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd").expect("own descriptors").flatten() {
        if let Ok(target) = std::fs::read_link(entry.path()) {
            targets.push(target.to_string_lossy().into_owned());
        }
    }
    targets
}

/// Other tests of this process open and close descriptors too, so only what names our own directory and port counts.
/// Both sides busy at once on cores of their own: what one core hands to the ring of the other meets it at any moment.
async fn many_connections_echo_to_another_thread(env: Env) {
    const CONNECTIONS: usize = 64;
    const ROUNDS: usize = 400;
    let listener = env.io.listen(env.address, &ListenOptions::default()).expect("listen");
    let address = listener.local_address();
    let client = std::thread::spawn(move || {
        let executor = Executor::new(ringlog_io::ExecutorConfig::default()).expect("a client");
        let io = executor.io();
        executor.run(async {
            let mut clients = Vec::new();
            for index in 0..CONNECTIONS {
                let socket = io.connect(address).await.expect("connect");
                let io = io.clone();
                clients.push(io.clone().spawn(Priority::Foreground, async move {
                    for round in 0..ROUNDS {
                        let message = pattern(64, index * ROUNDS + round);
                        io.send(&socket, vec![message.clone()]).await.expect("send");
                        assert_eq!(receive(&io, &socket, message.len()).await, message);
                    }
                }));
            }
            for client in clients {
                client.await;
            }
        });
    });
    let mut servers = Vec::new();
    for _ in 0..CONNECTIONS {
        let (socket, _) = env.io.accept(&listener).await.expect("accept");
        let io = env.io.clone();
        servers.push(env.io.spawn(Priority::Foreground, async move {
            loop {
                let bytes = io.recv_some(&socket).await.expect("receive");
                if bytes.is_empty() {
                    return;
                }
                io.send(&socket, vec![bytes]).await.expect("send");
            }
        }));
    }
    for server in servers {
        server.await;
    }
    client.join().expect("no panic");
}

async fn no_descriptor_leaks(env: Env) {
    let inside = |directory: &Path| {
        let directory = directory.to_string_lossy().into_owned();
        open_descriptors().into_iter().filter(|target| target.starts_with(&directory)).count()
    };
    for round in 0..20 {
        let file =
            env.io.open(&env.directory.join("file"), OpenOptions::READ_WRITE_CREATE).await.expect("open");
        env.io.write_at(&file, 0, vec![pattern(100, round)]).await.expect("write");
        let _lock = env.io.lock_file(&env.directory.join("lock")).await.expect("free");
        env.io.sync_directory(&env.directory).await.expect("sync");
        env.io.list_directory(&env.directory).await.expect("list");
        assert!(inside(&env.directory) >= 2);
    }
    assert_eq!(inside(&env.directory), 0);
    // Sockets: the peer of each one sees the end, so none is held open.
    for _ in 0..50 {
        let (client, server) = pair(&env).await;
        let waiting = env.io.spawn(Priority::Foreground, {
            let io = env.io.clone();
            async move { io.recv_some(&server).await }
        });
        env.io.yield_now().await;
        drop(waiting);
        assert!(env.io.recv_some(&client).await.map(|bytes| bytes.is_empty()).unwrap_or(true));
    }
}

async fn cached_bytes_are_counted(env: Env) {
    let file = env.io.open(&env.directory.join("file"), OpenOptions::READ_WRITE_CREATE).await.expect("open");
    env.io.write_at(&file, 0, vec![pattern(1 << 20, 1)]).await.expect("write");
    let cached = env.io.cached_bytes(&file, 0, 1 << 20);
    if env.io.features().has(Feature::Cachestat) {
        assert_eq!(cached, Some(1 << 20));
        assert_eq!(env.io.cached_bytes(&file, 4 << 20, 4_096), Some(0));
    } else {
        assert_eq!(cached, None);
    }
}

async fn direct_falls_back_on_memory_file_systems(env: Env) {
    let Ok(directory) = tempfile::tempdir_in("/dev/shm") else {
        eprintln!("skipped: no /dev/shm");
        return;
    };
    let path = directory.path().join("journal");
    let file = env.io.open(&path, OpenOptions::READ_WRITE_CREATE.with_direct()).await.expect("open");
    let mut buffer = AlignedBuffer::new();
    buffer.extend_from_slice(&pattern(8_192, 4));
    let (result, _) = env.io.write_direct(&file, 8_192, buffer, WriteSync::Data).await;
    result.expect("write");
    assert!(env.io.read_at(&file, 8_192, 8_192).await.expect("read") == pattern(8_192, 4));
    if !env.io.features().has(Feature::Direct) {
        assert!(!file.is_direct());
    }
}

fn thread_cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

async fn an_idle_executor_uses_no_cpu(env: Env) {
    let listener = env.io.listen(env.address, &ListenOptions::default()).expect("listen");
    env.io
        .spawn(Priority::Foreground, {
            let io = env.io.clone();
            async move {
                let _never = io.accept(&listener).await;
            }
        })
        .detach();
    let (client, _server) = pair(&env).await;
    env.io
        .spawn(Priority::Foreground, {
            let io = env.io.clone();
            async move {
                let _never = io.recv_some(&client).await;
            }
        })
        .detach();
    let before = (thread_cpu(), Instant::now(), env.io.stats());
    env.io.sleep(Duration::from_millis(500)).await;
    let (used, passed) = (thread_cpu() - before.0, before.1.elapsed());
    assert!(used * 100 < passed, "{used:?} of {passed:?}");
    let syscalls = env.io.stats().syscalls - before.2.syscalls;
    assert!(syscalls < 20, "{syscalls} system calls in an idle half second");
}

async fn an_executor_pins_its_thread(env: Env) {
    let cpu = *allowed_cpus().last().expect("one at least");
    let config = ringlog_io::ExecutorConfig { pin: Some(cpu), ..env.config.clone() };
    let (pinned, job) = std::thread::spawn(move || {
        let executor = Executor::new(config).expect("an executor");
        let io = executor.io();
        let mask = || rustix::thread::sched_getaffinity(None).expect("own mask");
        executor.run(async move { (mask(), io.compute(mask).await) })
    })
    .join()
    .expect("no panic");
    assert_eq!(pinned.count(), 1);
    assert!(pinned.is_set(cpu.0));
    assert_eq!(job.count() as usize, allowed_cpus().len(), "workers are not pinned with their executor");
}

async fn a_receive_buffer_is_set_only_where_allowed(env: Env) {
    let text = std::fs::read_to_string("/proc/sys/net/core/rmem_max").unwrap_or_default();
    let Ok(max) = text.trim().parse::<usize>() else {
        eprintln!("skipped: rmem_max is not readable");
        return;
    };
    let listen = |bytes| {
        let options = ListenOptions { receive_buffer_bytes: bytes, ..ListenOptions::default() };
        env.io.listen(env.address, &options).expect("listen").receive_buffer_bytes()
    };
    assert_eq!(listen(None), None);
    assert_eq!(listen(Some(max + 1)), None, "a clamped buffer switches autotuning off");
    assert!(listen(Some(max)).is_some_and(|bytes| bytes >= max));
}

async fn a_panic_of_a_job_reaches_its_caller(env: Env) {
    let mut job = Box::pin(env.io.compute(|| -> u32 { panic!("of the job") }));
    let caught = std::future::poll_fn(|context| {
        let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job.as_mut().poll(context)));
        match polled {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(_)) => Poll::Ready(false),
            Err(_) => Poll::Ready(true),
        }
    })
    .await;
    assert!(caught);
    assert_eq!(env.io.compute(|| 5).await, 5);
}
