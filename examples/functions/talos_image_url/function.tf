output "bare_metal" {
  value = provider::capi::talos_image_url(
    "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba", "v1.13.7", "metal-amd64.raw.zst",
  )
}
