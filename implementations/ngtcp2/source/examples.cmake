# Appended to upstream's examples/CMakeLists.txt.

# Upstream's examples link the shared libraries by these names. Here only the static libraries are built.
add_library(ngtcp2 ALIAS ngtcp2_static)
add_library(ngtcp2_crypto_ossl ALIAS ngtcp2_crypto_ossl_static)

# Upstream's HTTP/0.9 client and server over OpenSSL. Upstream's build files build them only for wolfSSL (wsslhqclient in
# examples/Makefile.am). Their sources are those of osslclient and osslserver with another codec.
foreach(role IN ITEMS client server)
  set(target osslhq${role})
  list(TRANSFORM ossl${role}_SOURCES REPLACE http3_${role}_proto_codec hq_${role}_proto_codec OUTPUT_VARIABLE sources)
  add_executable(${target} ${sources} $<TARGET_OBJECTS:urlparse> $<TARGET_OBJECTS:http-parser>)
  set_target_properties(${target} PROPERTIES
    COMPILE_FLAGS "${WARNCXXFLAGS} -DWITH_EXAMPLE_OSSL -DWITH_EXAMPLE_HQ_PROTO_CODEC"
    CXX_STANDARD 23
    CXX_STANDARD_REQUIRED ON
  )
  target_include_directories(${target} PUBLIC ${ossl_INCLUDE_DIRS})
  target_link_libraries(${target} ${ossl_LIBS})
endforeach()
