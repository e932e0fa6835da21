#pragma once

#include "packet_log.h"

#include "ns3/core-module.h"
#include "ns3/error-model.h"
#include "ns3/mac48-address.h"
#include "ns3/node.h"
#include "ns3/queue-disc.h"
#include "ns3/queue.h"
#include "ns3/simple-net-device.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace bentpipe
{

class AsymmetricChannel;

/// Demand-assigned capacity of a DVB-RCS2 return link (ETSI EN 301 545-2 §9): a terminal asks for capacity and may send only what was
/// granted. Capacities are bit/s of IP bytes.
struct DamaParameters
{
    double superframe_s = 0.0;   ///< the terminal asks once per superframe, and a grant is for one superframe
    double grant_delay_s = 0.0;  ///< from a request until its grant begins: request up, scheduling, terminal burst time plan down
    uint64_t cra = 0;            ///< constant rate assignment: granted without a request
    uint64_t rbdc = 0;           ///< rate-based dynamic capacity: at most this rate, as packets arrived in the last superframe; 0: none
    bool vbdc = false;           ///< volume-based dynamic capacity: the bytes that wait and were not yet requested
};

/// A waiting packet, with the addresses that the far end gets.
class WaitingPacket : public ns3::QueueDiscItem
{
  public:
    WaitingPacket(ns3::Ptr<ns3::Packet> packet, ns3::Mac48Address from, ns3::Mac48Address to, uint16_t protocol, ns3::Time stopped);

    void AddHeader() override;
    /// Sets CE in an ECT packet. Returns false for a packet that is not ECT (RFC 3168 §5).
    bool Mark() override;
    uint32_t Hash(uint32_t perturbation) const override;
    bool GetUint8Value(Uint8Values field, uint8_t& value) const override;

    ns3::Mac48Address From() const;
    /// How long the transmitter had stood still without a grant when the packet arrived.
    ns3::Time Stopped() const;

  private:
    ns3::Mac48Address from_;
    ns3::Time stopped_;
};

/// Makes a queue: `drop-tail`, `codel` (RFC 8289), `fq-codel` (RFC 8290) or `dualpi2` (RFC 9332), for at most `packets` packets.
ns3::Ptr<ns3::QueueDisc> MakeQueue(const std::string& discipline, uint32_t packets);

/// The names of all disciplines.
const std::vector<std::string>& QueueDisciplines();

/// Sends the packets of a queue over the channel. Its data rate may change at any time, also to 0 and during a packet: every bit takes
/// the time of the rate at that moment. ns-3's own device would send a whole packet at the rate of its first bit.
class Transmitter : public ns3::SimpleNetDevice
{
  public:
    void SetUp(ns3::Ptr<AsymmetricChannel> channel, ns3::Ptr<ns3::QueueDisc> queue, uint64_t data_rate);

    /// From now on only granted capacity is used. The first superframe begins now.
    void Assign(const DamaParameters& dama);

    /// bit/s; 0: nothing is sent until the next change.
    void SetDataRate(uint64_t data_rate);

    bool SendFrom(ns3::Ptr<ns3::Packet> packet, const ns3::Address& source, const ns3::Address& dest, uint16_t protocol) override;

    /// Whether the packet in transmission waited for a grant for a superframe or longer.
    bool WaitedForGrant() const;

    /// The time in which bits were sent.
    ns3::Time Busy() const;

    bool Transmitting() const;

  protected:
    void DoDispose() override;

  private:
    void Begin();
    void Run(uint64_t rate);
    void Finish();
    void OnSuperframe();
    void OnGrantUsed();
    ns3::Time Stopped() const;

    ns3::Ptr<AsymmetricChannel> wire_;
    ns3::Ptr<ns3::QueueDisc> queue_;
    ns3::Ptr<WaitingPacket> current_;
    ns3::EventId finish_;
    uint64_t data_rate_ = 0;  // of the carrier
    uint64_t rate_ = 0;       // at which bits leave now
    int64_t remaining_ = 0;   // of the packet in transmission, 1e-9 bit
    ns3::Time since_;         // `remaining_` and `busy_` are for this time
    ns3::Time busy_;

    std::optional<DamaParameters> dama_;
    ns3::EventId grant_used_;
    ns3::EventId superframe_;
    /// Bytes that were asked for in one superframe.
    struct Request
    {
        double rate = 0.0;    // as a rate: for packets that will arrive
        double volume = 0.0;  // for packets that wait
    };

    std::deque<Request> requests_;  // whose grants have not come, the oldest first; one for each superframe
    double arrived_ = 0.0;          // bytes that arrived in this superframe
    double unserved_ = 0.0;         // granted volume for which a superframe had no room
    double outstanding_ = 0.0;      // volume of `requests_`
    ns3::Time stopped_;             // time without a grant until `stopped_since_`
    std::optional<ns3::Time> stopped_since_;
};

}  // namespace bentpipe
