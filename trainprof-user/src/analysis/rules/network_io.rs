//! Sockets: an object store, a remote feature store, a parameter server.

use serde_json::json;

use super::{
    Answer, Evidence, Look,
    in_flight::{ahead, in_flight},
    look::{clip, rounded},
    server::{Server, server},
};
use crate::analysis::{Kind, words};

const KIND: Kind = Kind::NetworkIo;

pub(super) fn rule(look: &Look) -> Answer {
    look.cause(KIND, |evidence| {
        let sockets = look.top(KIND, |share| {
            (share.detail.socket != 0).then_some(share.detail.socket)
        });
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
        let named = look.outsiders(KIND).into_iter().next();
        let from = match (&named, peers.first()) {
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
        let server = server(look, KIND);
        if let Some(server) = &server {
            server.tell(evidence);
        }
        let more = ask_more(look, server.as_ref(), evidence);
        let advice = match (server, more) {
            (Some(server), None) => format!("{}, or keep a local copy", server.advice()),
            (Some(server), Some(more)) => {
                format!("{}; {more}, or keep a local copy", server.advice())
            }
            (None, more) => format!(
                "{}, fetch larger objects, or keep a local copy",
                more.unwrap_or_default()
            ),
        };
        (summary, advice)
    })
}

/// Asking for more at a time; `None` where whoever answers has no time to answer more.
fn ask_more(look: &Look, server: Option<&Server>, evidence: &mut Evidence) -> Option<String> {
    let flight = in_flight(look);
    let now = flight.map_or(1.0, |(now, _)| now as f64);
    let most = match server {
        Some(server) => server.most(now)?,
        None => f64::INFINITY,
    };
    let enough = |wanted: f64| {
        if wanted > most {
            "are what that process has time to answer"
        } else {
            "would keep up with the trainer"
        }
    };
    Some(match flight {
        Some((now, wanted)) => {
            evidence.insert("in_flight_needed", rounded(wanted));
            format!(
                "keep more requests in flight: about {:.0} instead of {now} {} (more workers, or several requests for each)",
                wanted.min(most),
                enough(wanted)
            )
        }
        None if look.trainer.cast.parallel() == 0 => {
            let readers = ahead(look, KIND) as f64;
            evidence.insert("in_flight_needed", json!(readers as u64));
            if readers <= 1.0 {
                return Some("ask for the next one while the trainer computes (a DataLoader worker, a thread, an asynchronous request)".to_owned());
            }
            format!(
                "ask ahead, and for several things at a time: about {:.0} {} (DataLoader workers, a pool of threads, asynchronous requests)",
                readers.min(most),
                enough(readers)
            )
        }
        None => "keep more requests in flight (several for each worker)".to_owned(),
    })
}
