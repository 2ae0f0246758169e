//! Configuration of queue disciplines.

use super::super::codel::CoDelParams;
use super::super::dynrlc::DynRlcParams;
use super::super::fq_codel::FqCoDelParams;
use super::super::l4s::L4sParams;
use super::*;

fn parse(text: &str) -> Result<QueueConfig, serde_json::Error> {
    serde_json::from_str(text)
}

#[test]
fn a_name_or_a_table() {
    assert_eq!(parse("\"e5g_bdp\"").unwrap(), QueueConfig::from(Algorithm::E5gBdp));
    let codel = parse("{\"algorithm\": \"codel\", \"target_us\": 1000}").unwrap();
    assert_eq!(codel, QueueConfig::CoDel(CoDelParams { target_us: 1000, interval_us: 100_000, ecn: false }));
    for algorithm in Algorithm::ALL {
        let config = QueueConfig::from(algorithm);
        assert_eq!(config.algorithm(), algorithm);
        assert_eq!(parse(&format!("\"{algorithm}\"")).unwrap(), config);
        let written = serde_json::to_string(&config).unwrap();
        assert!(written.contains(algorithm.name()));
        assert_eq!(parse(&written).unwrap(), config);
        config.build(BearerParams::default()).unwrap();
    }
}

#[test]
fn what_is_wrong_is_named() {
    let why = |text: &str| parse(text).unwrap_err().to_string();
    assert!(why("\"vanila\"").contains("did you mean \"vanilla\"?"));
    assert!(why("3").contains("a queue discipline"));
    assert!(why("{\"algorithm\": \"vanilla\", \"target_us\": 1}").contains("target_us"));
    assert!(why("{\"algorithm\": \"codel\", \"targt_us\": 1}").contains("`targt_us`, expected one of"));
    assert!(why("{\"algorithm\": \"red\"}").contains("expected one of `vanilla`, `dynrlc`"));
    for (config, message) in [
        (
            QueueConfig::E5gBdp(E5gBdpParams { alpha: f64::NAN, ..Default::default() }),
            "queue e5g_bdp: alpha = NaN: must be above 0, up to 1",
        ),
        (
            QueueConfig::DynRlc(DynRlcParams { max_sdus: 0, ..Default::default() }),
            "queue dynrlc: max_sdus = 0: must be at least min_sdus",
        ),
        (
            QueueConfig::FqCoDel(FqCoDelParams { flows: 0, ..Default::default() }),
            "queue fq_codel: flows = 0: must be 1 to 65536",
        ),
        (
            QueueConfig::L4s(L4sParams { low_latency_qfis: vec![5, 64], ..Default::default() }),
            "queue l4s: low_latency_qfis = 64: must be QFIs of 0 to 63",
        ),
    ] {
        assert_eq!(config.build(BearerParams::default()).unwrap_err().to_string(), message);
    }
}
