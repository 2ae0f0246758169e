//! PDCP data PDUs: whatever parses is written and read again as the same, with both lengths of SN.
#![no_main]

use anabranch_wire::pdcp::PdcpSn;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    for sn in [PdcpSn::Bits12, PdcpSn::Bits18] {
        let Ok((number, sdu)) = sn.parse(data) else { continue };
        assert!(number < sn.modulus());
        let mut again = data.to_vec();
        sn.emit(number, &mut again).expect("room");
        assert_eq!(sn.parse(&again), Ok((number, sdu)));
    }
});
