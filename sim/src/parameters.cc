#include "parameters.h"

#include <charconv>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <string_view>

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

std::string
ParseInterface(const std::string& name, const std::string& value)
{
    if (value.empty() || value.size() > kMaxInterfaceName || value.find('/') != std::string::npos)
    {
        Reject(name, "the name of a network interface", value);
    }
    return value;
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
AddLinkSetters(std::map<std::string, Setter>& setters, const std::string& prefix, LinkParameters& link)
{
    setters[prefix + "-rate"] = [&link](const auto& name, const auto& value) {
        link.rate_bps = ParseWhole(name, value, kMinRate, kMaxRate, " of bit/s");
    };
    setters[prefix + "-delay"] = [&link](const auto& name, const auto& value) {
        link.delay_s = ParseReal(name, value, kMaxDelay, "seconds from 0 to 60");
    };
    setters[prefix + "-queue"] = [&link](const auto& name, const auto& value) { link.queue = ParseQueue(name, value); };
    setters[prefix + "-loss"] = [&link](const auto& name, const auto& value) {
        link.loss = ParseReal(name, value, 1.0, "a fraction from 0 to 1");
    };
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
    setters["truth"] = [&p](const auto& name, const auto& value) { p.truth_path = ParsePath(name, value); };
    setters["packets"] = [&p](const auto& name, const auto& value) { p.packets_path = ParsePath(name, value); };
    setters["loss-protocol"] = [&p](const auto& name, const auto& value) {
        p.loss_protocol = ParseLossProtocol(name, value);
    };
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
           "  --return-rate= --return-delay= --return-queue= --return-loss=   left to right\n"
           "  --loss-protocol=udp|any             which packets may be lost, default udp\n"
           "  --seed=N                            0 to 4294967295\n"
           "  --truth=FILE                        summary, JSON, written at the end\n"
           "  --packets=FILE                      per-packet log, binary (optional)\n"
           "  --ready-port=PORT                   TCP, accepts once the path is open, default 57832\n";
}

Parameters
ParseParameters(int argc, const char* const* argv)
{
    Parameters parameters;
    const std::map<std::string, Setter> setters = MakeSetters(parameters);
    std::set<std::string> missing{"left",         "right",       "forward-rate", "forward-delay", "forward-queue",
                                  "return-rate",  "return-delay", "return-queue", "seed",          "truth"};
    for (int i = 1; i < argc; ++i)
    {
        const std::string_view argument(argv[i]);
        if (argument == "--help")
        {
            parameters.help = true;
            return parameters;
        }
        const size_t equals = argument.find('=');
        if (argument.substr(0, 2) != "--" || equals == std::string_view::npos)
        {
            throw UserError("'" + std::string(argument) + "' is not of the form --name=value; --help lists the names.");
        }
        const std::string name(argument.substr(2, equals - 2));
        const auto setter = setters.find(name);
        if (setter == setters.end())
        {
            throw UserError("There is no argument --" + name + "; --help lists the names.");
        }
        setter->second(name, std::string(argument.substr(equals + 1)));
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
