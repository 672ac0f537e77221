//! Probes get in whatever else is there.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};
use tidegate_harness::Site;

/// As many sockets as that, each sending a piece of a head now and then; one that is thrown out comes again.
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
                // Who has to wait for a place waits as long as they stay, which is for ever.
                let took = asked.elapsed();
                assert!(took < Duration::from_secs(20), "{sockets} sockets: {took:?}");
                thread::sleep(Duration::from_millis(50));
            }
        });
    }
}
