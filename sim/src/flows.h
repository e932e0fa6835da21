#pragma once

#include "packet_edit.h"

#include "ns3/packet.h"

#include <cstdint>
#include <map>
#include <utility>

namespace bentpipe
{

/// Numbers the UDP flows of a link from 0, in the order of their first packets. A flow is an address and a port at each end; its two
/// directions have the same number.
class Flows
{
  public:
    /// The number of the packet's flow; 0 for packets other than whole UDP packets. Many flows share the highest number.
    uint32_t NumberOf(ns3::Ptr<const ns3::Packet> packet);

  private:
    std::map<std::pair<UdpEndpoint, UdpEndpoint>, uint32_t> numbers_;
};

/// The state of a random impairment of one direction, one for each flow and with a stream of random numbers for each flow.
///
/// So the n-th packet of the k-th connection has the same fate with the same seed, however many packets the connections before it sent.
/// `State` is made from the number of its stream. `flows` must outlive this object.
template <typename State>
class PerFlow
{
  public:
    PerFlow(Flows& flows, int64_t first_stream)
        : flows_(flows),
          first_stream_(first_stream)
    {
    }

    State& Of(ns3::Ptr<const ns3::Packet> packet)
    {
        const uint32_t number = flows_.NumberOf(packet);
        return states_.try_emplace(number, first_stream_ + kStreamsPerFlow * number).first->second;
    }

    void Clear()
    {
        states_.clear();
    }

  private:
    static constexpr int64_t kStreamsPerFlow = 100;  // more than the streams of a whole link

    Flows& flows_;
    int64_t first_stream_;
    std::map<uint32_t, State> states_;
};

}  // namespace bentpipe
