//! Probes are answered even when slow clients occupy the port.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};
use tidegate_harness::Site;

/// Opens this many sockets, each of which sends a part of a header now and then; a rejected one connects
/// again.
fn besiege<T>(address: SocketAddr, sockets: usize, work: impl FnOnce() -> T) -> T {
    let connect = || TcpStream::connect(address).expect("the port accepts");
    let mut slow: Vec<TcpStream> = (0..sockets).map(|_| connect()).collect();
    let (done, ended) = channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            while ended.recv_timeout(Duration::from_millis(100)) == Err(RecvTimeoutError::Timeout) {
                for stream in &mut slow {
                    if stream.write_all(b"GET /livez HTTP/1.1\r\nX-Slow: ").is_err() {
                        *stream = connect();
                    }
                }
            }
        });
        let result = work();
        drop(done);
        result
    })
}

#[test]
fn probes_are_answered_while_seventy_sockets_trickle() {
    let site = Site::new("siege");
    let daemon = site.start(&site.config());
    // Fewer than there are places, as many, and more.
    for sockets in [70, 200] {
        besiege(daemon.admin(), sockets, || {
            let end = Instant::now() + Duration::from_secs(7);
            while Instant::now() < end {
                let asked = Instant::now();
                assert_eq!(daemon.ask("GET", "/readyz").0, 200);
                let status = daemon.cli(&["status"]);
                assert!(status.out.contains("running"), "{sockets} sockets: {status:?}");
                // A request that had to wait for a place would wait as long as the sockets stay open, that
                // is, indefinitely.
                let took = asked.elapsed();
                assert!(took < Duration::from_secs(20), "{sockets} sockets: {took:?}");
                thread::sleep(Duration::from_millis(50));
            }
        });
    }
}
