//! Sockets: an object store, a remote feature store, a parameter server.

use serde_json::json;

use super::{
    Answer, Look,
    in_flight::{ahead, in_flight},
    look::{clip, rounded},
};
use crate::analysis::{Kind, words};

const KIND: Kind = Kind::NetworkIo;

pub(super) fn rule(look: &Look) -> Answer {
    look.cause(KIND, |evidence| {
        let sockets = look.top(KIND, |share| (share.detail.socket != 0).then_some(share.detail.socket));
        let mut peers: Vec<String> = Vec::new();
        for (inode, _) in &sockets {
            if let Some(peer) = look
                .session
                .host
                .sockets
                .get(inode)
                .and_then(|socket| socket.peer.clone())
                && !peers.contains(&peer)
            {
                peers.push(peer);
            }
        }
        if !peers.is_empty() {
            evidence.insert("peers", json!(peers.iter().take(5).collect::<Vec<_>>()));
        }
        let server = look.outsiders(KIND).into_iter().next();
        let from = match (&server, peers.first()) {
            (Some(((pid, command), _)), _) => format!("process {pid} ({})", clip(command, 60)),
            (None, Some(_)) => words::list(&peers),
            (None, None) => "the network".to_owned(),
        };
        let read: u64 = look
            .session
            .threads
            .values()
            .map(|thread| thread.activity.socket_read_bytes)
            .sum();
        let rate = read as f64 / look.session.duration_s().max(1e-9);
        let summary = format!(
            "{} waited for answers from {from}, {} a second over sockets",
            look.who(KIND),
            words::bytes(rate)
        );
        evidence.insert("bytes_per_s", rounded(rate));
        let more = match in_flight(look) {
            Some((now, wanted)) => {
                evidence.insert("in_flight_needed", rounded(wanted));
                format!("keep more requests in flight: about {wanted:.0} instead of {now} would keep up with the trainer (more workers, or several requests for each)")
            }
            None if look.trainer.cast.parallel() == 0 => {
                let readers = ahead(look, KIND);
                evidence.insert("in_flight_needed", json!(readers));
                format!("ask ahead, and for several things at a time: about {readers} would keep up with the trainer (DataLoader workers, a pool of threads, asynchronous requests)")
            }
            None => "keep more requests in flight (several for each worker)".to_owned(),
        };
        let advice = format!("{more}, fetch larger objects, or keep a local copy");
        (summary, advice)
    })
}
