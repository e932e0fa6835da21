#include "parameters.h"

#include <charconv>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <arpa/inet.h>

namespace bentpipe
{

namespace
{

constexpr uint64_t kMinRate = 1'000;
constexpr uint64_t kMaxRate = 10'000'000'000;
constexpr double kMaxDelay = 60.0;
constexpr uint64_t kMaxQueuePackets = 1'000'000;
constexpr uint64_t kMinQueueBytes = 1'500;
constexpr uint64_t kMaxQueueBytes = 4'000'000'000;
constexpr uint64_t kMaxPacketNumber = 1'000'000'000;
constexpr uint64_t kMinMtu = 100;
constexpr uint64_t kMaxMtu = 65'535;
constexpr double kMaxTime = 86'400.0;
constexpr size_t kMaxInterfaceName = 15;  // IFNAMSIZ - 1

using Setter = std::function<void(const std::string& name, const std::string& value)>;

[[noreturn]] void
Reject(const std::string& name, const std::string& expected, const std::string& value)
{
    throw UserError("--" + name + " must be " + expected + ", not '" + value + "'.");
}

uint64_t
ParseWhole(const std::string& name, const std::string& value, uint64_t min, uint64_t max, const std::string& unit)
{
    uint64_t number = 0;
    const char* end = value.data() + value.size();
    const auto result = std::from_chars(value.data(), end, number);
    if (result.ec != std::errc() || result.ptr != end || number < min || number > max)
    {
        Reject(name, "a whole number" + unit + " from " + std::to_string(min) + " to " + std::to_string(max), value);
    }
    return number;
}

double
ParseReal(const std::string& name, const std::string& value, double max, const std::string& expected)
{
    double number = 0.0;
    const char* end = value.data() + value.size();
    const auto result = std::from_chars(value.data(), end, number);
    if (result.ec != std::errc() || result.ptr != end || !std::isfinite(number) || number < 0.0 || number > max)
    {
        Reject(name, expected, value);
    }
    return number;
}

std::string
ParseQueue(const std::string& name, const std::string& value)
{
    const char unit = value.empty() ? '\0' : value.back();
    if (unit != 'p' && unit != 'B')
    {
        Reject(name, "packets such as 125p or bytes such as 750000B", value);
    }
    const std::string digits = value.substr(0, value.size() - 1);
    const uint64_t limit = unit == 'p' ? ParseWhole(name, digits, 1, kMaxQueuePackets, " of packets followed by p")
                                       : ParseWhole(name, digits, kMinQueueBytes, kMaxQueueBytes, " of bytes followed by B");
    return std::to_string(limit) + unit;
}

std::vector<std::string>
Split(const std::string& text, char separator)
{
    std::vector<std::string> parts;
    size_t begin = 0;
    for (size_t end = text.find(separator); end != std::string::npos; end = text.find(separator, begin))
    {
        parts.push_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    parts.push_back(text.substr(begin));
    return parts;
}

std::vector<std::string>
SplitInto(const std::string& name, const std::string& value, size_t count, const std::string& expected)
{
    const std::vector<std::string> parts = Split(value, ',');
    if (parts.size() != count)
    {
        Reject(name, expected, value);
    }
    return parts;
}

double
ParseFraction(const std::string& name, const std::string& value)
{
    return ParseReal(name, value, 1.0, "a fraction from 0 to 1");
}

double
ParseTime(const std::string& name, const std::string& value)
{
    return ParseReal(name, value, kMaxTime, "seconds from 0 to 86400");
}

uint64_t
ParseRate(const std::string& name, const std::string& value)
{
    return ParseWhole(name, value, kMinRate, kMaxRate, " of bit/s");
}

double
ParseDelay(const std::string& name, const std::string& value)
{
    return ParseReal(name, value, kMaxDelay, "seconds from 0 to 60");
}

std::vector<PacketRange>
ParseLossList(const std::string& name, const std::string& value)
{
    std::vector<PacketRange> ranges;
    for (const std::string& part : Split(value, ','))
    {
        const size_t dash = part.find('-');
        const std::string unit = " of packets, or a range such as 2-7,";
        const uint64_t first = ParseWhole(name, part.substr(0, dash), 1, kMaxPacketNumber, unit);
        const uint64_t last =
            dash == std::string::npos ? first : ParseWhole(name, part.substr(dash + 1), first, kMaxPacketNumber, unit);
        ranges.push_back({first, last});
    }
    return ranges;
}

GilbertElliott
ParseGilbertElliott(const std::string& name, const std::string& value)
{
    const auto parts = SplitInto(name, value, 2, "two fractions, good to bad and bad to good, such as 0.018,0.645");
    return {ParseFraction(name, parts[0]), ParseFraction(name, parts[1])};
}

std::vector<LinkChange>
ParseChanges(const std::string& name, const std::string& value)
{
    std::vector<LinkChange> changes;
    for (const std::string& step : Split(value, ';'))
    {
        const auto parts = SplitInto(name, step, 4, "TIME,DELAY,RATE,LOSS of each step, separated by semicolons");
        changes.push_back({ParseTime(name, parts[0]),
                           ParseDelay(name, parts[1]),
                           ParseRate(name, parts[2]),
                           ParseFraction(name, parts[3])});
        if (changes.size() > 1 && changes.back().time_s < changes[changes.size() - 2].time_s)
        {
            Reject(name, "a list of steps in the order of their times", value);
        }
    }
    return changes;
}

Outage
ParseOutage(const std::string& name, const std::string& value)
{
    const auto parts = SplitInto(name, value, 2, "START,DURATION in seconds");
    return {ParseTime(name, parts[0]), ParseTime(name, parts[1])};
}

MtuFall
ParseMtuFall(const std::string& name, const std::string& value)
{
    const auto parts = SplitInto(name, value, 2, "BYTES,START");
    return {static_cast<uint32_t>(ParseWhole(name, parts[0], kMinMtu, kMaxMtu, " of bytes")), ParseTime(name, parts[1])};
}

Rebinding
ParseRebinding(const std::string& name, const std::string& value)
{
    const std::string expected = "port or address, then FIRST and EVERY in seconds, such as port,1,5";
    const auto parts = SplitInto(name, value, 3, expected);
    if (parts[0] != "port" && parts[0] != "address")
    {
        Reject(name, expected, value);
    }
    return {parts[0] == "address", ParseTime(name, parts[1]), ParseTime(name, parts[2])};
}

bool
ParseYesNo(const std::string& name, const std::string& value)
{
    if (value != "yes" && value != "no")
    {
        Reject(name, "yes or no", value);
    }
    return value == "yes";
}

std::string
ParseInterface(const std::string& name, const std::string& value)
{
    if (value.empty() || value.size() > kMaxInterfaceName || value.find('/') != std::string::npos)
    {
        Reject(name, "the name of a network interface", value);
    }
    return value;
}

std::vector<Subnet>
ParseSubnets(const std::string& name, const std::string& value)
{
    const std::string expected = "subnets such as 192.0.2.0/24,2001:db8::/64";
    std::vector<Subnet> subnets;
    for (const std::string& part : Split(value, ','))
    {
        const size_t slash = part.find('/');
        if (slash == std::string::npos)
        {
            Reject(name, expected, value);
        }
        const std::string address = part.substr(0, slash);
        Subnet subnet;
        subnet.address.resize(sizeof(in6_addr));
        if (inet_pton(AF_INET, address.c_str(), subnet.address.data()) == 1)
        {
            subnet.address.resize(sizeof(in_addr));
        }
        else if (inet_pton(AF_INET6, address.c_str(), subnet.address.data()) != 1)
        {
            Reject(name, expected, value);
        }
        const uint64_t bits = 8 * subnet.address.size();
        subnet.prefix = static_cast<uint32_t>(ParseWhole(name, part.substr(slash + 1), 1, bits, " of bits"));
        subnets.push_back(subnet);
    }
    return subnets;
}

std::string
ParsePath(const std::string& name, const std::string& value)
{
    if (value.empty() || value.back() == '/')
    {
        Reject(name, "the path of a file", value);
    }
    return value;
}

LossProtocol
ParseLossProtocol(const std::string& name, const std::string& value)
{
    if (value != "udp" && value != "any")
    {
        Reject(name, "udp or any", value);
    }
    return value == "udp" ? LossProtocol::kUdp : LossProtocol::kAny;
}

void
AddImpairmentSetters(std::map<std::string, Setter>& setters, const std::string& prefix, LinkParameters& link)
{
    setters[prefix + "-loss-list"] = [&link](const auto& name, const auto& value) {
        link.loss_list = ParseLossList(name, value);
    };
    setters[prefix + "-gilbert-elliott"] = [&link](const auto& name, const auto& value) {
        link.gilbert_elliott = ParseGilbertElliott(name, value);
    };
    setters[prefix + "-corruption"] = [&link](const auto& name, const auto& value) {
        link.corruption = ParseFraction(name, value);
    };
    setters[prefix + "-burst"] = [&link](const auto& name, const auto& value) {
        link.burst = static_cast<uint32_t>(ParseWhole(name, value, 0, kMaxQueuePackets, " of packets"));
    };
    setters[prefix + "-jitter"] = [&link](const auto& name, const auto& value) {
        link.jitter_s = ParseDelay(name, value);
    };
    setters[prefix + "-reorder"] = [&link](const auto& name, const auto& value) {
        const auto parts = SplitInto(name, value, 2, "FRACTION,SECONDS");
        link.reorder = ParseFraction(name, parts[0]);
        link.reorder_delay_s = ParseDelay(name, parts[1]);
    };
    setters[prefix + "-mark"] = [&link](const auto& name, const auto& value) {
        link.mark_packets = static_cast<uint32_t>(ParseWhole(name, value, 0, kMaxQueuePackets, " of packets"));
    };
    setters[prefix + "-changes"] = [&link](const auto& name, const auto& value) {
        link.changes = ParseChanges(name, value);
    };
}

void
AddLinkSetters(std::map<std::string, Setter>& setters, const std::string& prefix, LinkParameters& link)
{
    setters[prefix + "-rate"] = [&link](const auto& name, const auto& value) {
        link.rate_bps = ParseRate(name, value);
    };
    setters[prefix + "-delay"] = [&link](const auto& name, const auto& value) {
        link.delay_s = ParseDelay(name, value);
    };
    setters[prefix + "-queue"] = [&link](const auto& name, const auto& value) { link.queue = ParseQueue(name, value); };
    setters[prefix + "-loss"] = [&link](const auto& name, const auto& value) { link.loss = ParseFraction(name, value); };
    AddImpairmentSetters(setters, prefix, link);
}

std::map<std::string, Setter>
MakeSetters(Parameters& p)
{
    std::map<std::string, Setter> setters;
    AddLinkSetters(setters, "forward", p.forward);
    AddLinkSetters(setters, "return", p.back);
    setters["left"] = [&p](const auto& name, const auto& value) { p.left = ParseInterface(name, value); };
    setters["right"] = [&p](const auto& name, const auto& value) { p.right = ParseInterface(name, value); };
    setters["seed"] = [&p](const auto& name, const auto& value) {
        p.seed = static_cast<uint32_t>(ParseWhole(name, value, 0, UINT32_MAX, ""));
    };
    setters["flood"] = [&p](const auto& name, const auto& value) {
        p.flood_bytes = static_cast<uint64_t>(ParseWhole(name, value, 1, INT64_MAX, " bytes"));
    };
    setters["left-foreign"] = [&p](const auto& name, const auto& value) { p.left_foreign = ParseSubnets(name, value); };
    setters["right-foreign"] = [&p](const auto& name, const auto& value) { p.right_foreign = ParseSubnets(name, value); };
    setters["truth"] = [&p](const auto& name, const auto& value) { p.truth_path = ParsePath(name, value); };
    setters["packets"] = [&p](const auto& name, const auto& value) { p.packets_path = ParsePath(name, value); };
    setters["loss-protocol"] = [&p](const auto& name, const auto& value) {
        p.loss_protocol = ParseLossProtocol(name, value);
    };
    setters["overtaking"] = [&p](const auto& name, const auto& value) { p.overtaking = ParseYesNo(name, value); };
    setters["outage"] = [&p](const auto& name, const auto& value) { p.outage = ParseOutage(name, value); };
    setters["mtu-fall"] = [&p](const auto& name, const auto& value) { p.mtu_fall = ParseMtuFall(name, value); };
    setters["rebind"] = [&p](const auto& name, const auto& value) { p.rebinding = ParseRebinding(name, value); };
    setters["ready-port"] = [&p](const auto& name, const auto& value) {
        p.ready_port = static_cast<uint16_t>(ParseWhole(name, value, 1, UINT16_MAX, ""));
    };
    return setters;
}

}  // namespace

const char*
UsageText()
{
    return "bentpipe-link: an asymmetric satellite link between two interfaces, in real time (ns-3).\n"
           "  --left=IFACE --right=IFACE          client side, server side\n"
           "  --forward-rate=BITS_PER_S           right to left (towards the client), of IP bytes\n"
           "  --forward-delay=SECONDS             one way\n"
           "  --forward-queue=125p|750000B        drop-tail: packets or IP bytes that wait\n"
           "  --forward-loss=FRACTION             uniform, default 0\n"
           "  --forward-loss-list=2-7,9           these UDP packets, counted from 1\n"
           "  --forward-gilbert-elliott=P,R       loss in bursts: good to bad, bad to good, per packet\n"
           "  --forward-corruption=FRACTION       one byte of the UDP payload changes, the checksum is right again\n"
           "  --forward-burst=N                   at most N losses, N corruptions in a row; default 0, no limit\n"
           "  --forward-jitter=SECONDS            more delay, uniform; in order unless --overtaking=yes\n"
           "  --forward-reorder=FRACTION,SECONDS  packets that are held back\n"
           "  --forward-mark=N                    ECN: CE for packets that leave N or more waiting behind them\n"
           "  --forward-changes=TIME,DELAY,RATE,LOSS;...   from TIME on, seconds after the first UDP packet\n"
           "  --return-...=                       the same, left to right\n"
           "  --outage=START,DURATION             no UDP packet passes; START after the first 1-RTT packet\n"
           "  --mtu-fall=BYTES,START              longer UDP packets vanish; START likewise\n"
           "  --rebind=port|address,FIRST,EVERY   a NAT before the client changes its mapping; FIRST likewise\n"
           "  --loss-protocol=udp|any             which packets may be lost, default udp\n"
           "  --seed=N                            0 to 4294967295\n"
           "  --flood=BYTES                       of a capture; once one side brings more, the link closes, 'link flooded'\n"
           "  --left-foreign=SUBNET,...           sources that nobody on the left has: dropped, counted as spoofed\n"
           "  --right-foreign=SUBNET,...          the same on the right\n"
           "  --truth=FILE                        summary, JSON, written at the end\n"
           "  --packets=FILE                      per-packet log, binary (optional)\n"
           "  --ready-port=PORT                   TCP, accepts once the path is open, default 57832\n"
           "or --serve: a JSON array of such arguments, one line of stdin, starts a link, the line stop ends it.\n";
}

Parameters
ParseParameters(const std::vector<std::string>& arguments)
{
    Parameters parameters;
    const std::map<std::string, Setter> setters = MakeSetters(parameters);
    std::set<std::string> missing{"left",         "right",       "forward-rate", "forward-delay", "forward-queue",
                                  "return-rate",  "return-delay", "return-queue", "seed",          "truth"};
    for (const std::string& argument : arguments)
    {
        if (argument == "--help")
        {
            parameters.help = true;
            return parameters;
        }
        const size_t equals = argument.find('=');
        if (argument.substr(0, 2) != "--" || equals == std::string::npos)
        {
            throw UserError("'" + argument + "' is not of the form --name=value; --help lists the names.");
        }
        const std::string name = argument.substr(2, equals - 2);
        const auto setter = setters.find(name);
        if (setter == setters.end())
        {
            throw UserError("There is no argument --" + name + "; --help lists the names.");
        }
        setter->second(name, argument.substr(equals + 1));
        missing.erase(name);
    }
    if (!missing.empty())
    {
        throw UserError("--" + *missing.begin() + " is missing; --help lists the arguments.");
    }
    if (parameters.left == parameters.right)
    {
        throw UserError("--left and --right must be two different interfaces, not both '" + parameters.left + "'.");
    }
    return parameters;
}

}  // namespace bentpipe
